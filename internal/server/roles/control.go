package roles

import (
	"crypto/tls"
	"net"
	"net/http"

	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/node/control"
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

// addLocal adds the control API and the admin API on the admin socket of a process with a node or an index.
func (s *server) addLocal() {
	o := control.Options{
		Node: s.node, Pump: s.lanes.pump, Lanes: s.lanes.Lanes, Memory: s.lanes.memory,
		Log: s.log, Board: s.lanes.board, Lookups: s.cfg.Lanes.Search, MaxRequest: int64(s.cfg.HTTP.MaxBody),
	}
	if s.search != nil {
		o.Index, o.Ready = s.search, s.checkSearch
	}
	api := control.New(o)
	local := api.HTTPServer()
	local.Handler = s.adminHandler(local.Handler)
	s.local = newPort(local, func(l net.Listener) net.Listener { return bulk.Listen(l, s.lanes.pump, api.Stall) })
}

// adminHandler adds dumps, mirrors, origins, LFS objects and the application's workers to next, which may be nil.
func (s *server) adminHandler(next http.Handler) http.Handler {
	var m *mirror.Mirrors
	if s.mirrors != nil {
		m = s.mirrors.Mirrors
	}
	next = adminapi.LFS(s.node, adminapi.Workers(s.app, s.cfg.App.Drain.Duration, next))
	return s.dumps.within(adminapi.Mirrors(m, adminapi.Origins(s.originStatus, next)))
}
