package roles

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// controlOptions returns the options of the control API on a port for gateways that all roles have in common.
func (s *server) controlOptions() control.Options {
	return control.Options{
		Pump: s.lanes.pump, Lanes: s.lanes.Lanes, Memory: s.lanes.memory, Registerer: s.reg, Log: s.log,
		Board: s.lanes.board, SLI: s.lanes.sli, Tracer: s.lanes.tracer,
	}
}

// addControl adds a port for gateways that serves the control API.
func (s *server) addControl(o control.Options, trust credfile.Trust) *control.Server {
	o.Trust.Certificates = trust.Authorities != nil
	if trust.Secret != nil {
		o.Trust.Secret = trust.Secret.Get
	}
	if trust.Authorities != nil {
		o.Trust.Authorities = trust.Authorities.Pool
	}
	handler := control.New(o)
	s.drains = append(s.drains, handler.Drain)
	s.control = newPort(handler.HTTPServer(), func(l net.Listener) net.Listener {
		l = bulk.Listen(l, s.lanes.pump, handler.Stall)
		if trust.Certificate != nil {
			l = tls.NewListener(l, trust.ServerTLS())
		}
		return l
	})
	return handler
}

// addAdmin adds the control API on the admin socket, with the work of commands.
func (s *server) addAdmin() {
	admin := &adminapi.Service{Router: s.router, App: s.app, Drain: s.cfg.App.Drain.Duration, Origins: s.originStatus,
		Node: s.node, Dump: func(ctx context.Context) (watchdog.Dump, error) {
			return s.dumps.write(ctx)
		}}
	if s.mirrors != nil {
		admin.Mirrors = s.mirrors.Mirrors
	}
	o := control.Options{
		Node: s.node, Admin: admin, Pump: s.lanes.pump, Lanes: s.lanes.Lanes, Memory: s.lanes.memory,
		Log: s.log, Board: s.lanes.board, MaxRequest: int64(s.cfg.HTTP.MaxBody),
		Ready: func() error { return nil },
	}
	if s.search != nil {
		o.Index, o.Ready = s.search, s.checkSearch
	}
	api := control.New(o)
	s.admin = newPort(api.HTTPServer(), func(l net.Listener) net.Listener {
		return bulk.Listen(l, s.lanes.pump, api.Stall)
	})
}
