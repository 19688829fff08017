package roles

import (
	"crypto/tls"
	"net"

	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// controlOptions returns the options of the control API on a port for gateways that all roles have in common.
func controlOptions(d *deps) control.Options {
	return control.Options{
		Pump: d.lanes.pump, Lanes: d.lanes.Lanes, Memory: d.lanes.memory, Registerer: d.reg, Log: d.log,
		Board: d.lanes.board, SLI: d.lanes.sli, Tracer: d.lanes.tracer,
		Mentions: d.mentionsOf,
	}
}

// newControl makes the control API and its port for gateways.
func newControl(d *deps, o control.Options, trust credfile.Trust) (*control.Server, *port) {
	o.Trust.Certificates = trust.Authorities != nil
	if trust.Secret != nil {
		o.Trust.Secret = trust.Secret.Get
	}
	if trust.Authorities != nil {
		o.Trust.Authorities = trust.Authorities.Pool
	}
	handler := control.New(o)
	d.life.drains = append(d.life.drains, handler.Drain)
	return handler, newPort(handler.HTTPServer(), func(l net.Listener) net.Listener {
		l = bulk.Listen(l, d.lanes.pump, handler.Stall)
		if trust.Certificate != nil {
			l = tls.NewListener(l, trust.ServerTLS())
		}
		return l
	})
}
