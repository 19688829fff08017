package roles

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/connlimit"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// addGateway adds the parts for clients: authentication, Git over HTTP and SSH, pages and the application. Without
// tiers the router resolves revisions. searchAPI may be nil.
func (s *server) addGateway(routes *router.Router, tiers *resolve.Tiers, searchAPI *api.API) error {
	callers, err := s.newAuth()
	if err != nil {
		return err
	}
	s.closers.push("authentication", callers.Close)
	s.lanes.reserveForKnown(callers.Configured)
	for _, source := range callers.Sources().List() {
		s.checks = append(s.checks, observe.Check{Name: "auth_" + source.Name, Look: source.Check})
	}
	clients, err := s.newClientListeners()
	if err != nil {
		return err
	}
	s.notes = append(s.notes, clients.notes)
	handler := s.newGitHandler(routes, tiers, callers)
	handler.Proxies = clients.proxies
	if handler.LFS, err = s.newLFS(callers.Key); err != nil {
		return err
	}
	if s.mirrors != nil {
		handler.Hooks = s.mirrors.hooks
	}
	s.drains = append(s.drains, handler.Drain)
	if handler.Pages, err = s.newPages(routes, searchAPI); err != nil {
		return err
	}
	if err := s.addApp(handler); err != nil {
		return err
	}
	if s.public, err = s.newHTTPPort(handler, clients); err != nil {
		return err
	}
	return s.addSSH(handler.Gateway, callers, clients)
}

// newGitHandler makes the handler of requests to the public HTTP listener.
func (s *server) newGitHandler(routes *router.Router, tiers *resolve.Tiers, callers gateway.Auth) *githttp.Handler {
	lanes := &s.lanes
	g := gateway.Gateway{
		Router: routes, Resolver: routes, Auth: callers, Rename: foldCase(s.cfg.Auth.Origin),
		SendCredentials: len(s.cfg.Mirror) > 0, Pump: lanes.pump, Lanes: lanes.Lanes, Memory: lanes.memory,
		Metrics: gateway.NewMetrics(s.reg), Log: s.log, Board: lanes.board, SLI: lanes.sli, Tracer: lanes.tracer,
		MaxBody: int64(s.cfg.HTTP.MaxBody), ReadStall: s.cfg.HTTP.Stall.Duration,
		MaxPush: int64(s.cfg.Push.MaxSize), PushTime: s.cfg.Git.TimeLimit.Duration,
	}
	if tiers != nil {
		g.Resolver, g.Changed = tiers, tiers.Changed
	}
	return githttp.New(githttp.Options{Gateway: &g, CORSOrigins: s.cfg.HTTP.CORSOrigins})
}

// newHTTPPort makes the HTTP server of a handler. Its listener wraps those of the handler in TLS and a guard only.
// Below them, each connection must be a bulk.Socket.
func (s *server) newHTTPPort(handler *githttp.Handler, clients *clientListeners) (*port, error) {
	cfg, log := s.cfg, s.log
	errorLog := newHTTPLog(log, s.reg)
	h := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second, // also of a TLS handshake
		IdleTimeout:       cfg.HTTP.IdleTimeout.Duration,
		MaxHeaderBytes:    int(cfg.HTTP.MaxHeader),
		ErrorLog:          errorLog.logger(),
	}
	guard := httpguard.New(httpguard.Options{Refused: handler.Refused})
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return connlimit.Context(guard.Context(bulk.Serve(ctx, c), c), c)
	}
	h.ConnState = func(c net.Conn, state http.ConnState) {
		guard.State(c, state)
		clients.http.State(c, state)
	}
	h.RegisterOnShutdown(handler.EndWaits)
	h.Protocols = new(http.Protocols)
	h.Protocols.SetHTTP1(true) // alone: docs/decisions/0007-http1-alone.md
	var tlsConfig *tls.Config
	if cfg.HTTP.TLSCert != "" {
		certificate, err := credfile.LoadCertificate(cfg.HTTP.TLSCert, cfg.HTTP.TLSKey, log)
		if err != nil {
			return nil, err
		}
		tlsConfig = &tls.Config{GetCertificate: certificate.Get, NextProtos: []string{"http/1.1"},
			MinVersion: tls.VersionTLS12}
	}
	return newPort(h, func(l net.Listener) net.Listener {
		l = handler.Listen(clients.listenHTTP(l, cfg.HTTP), cfg.HTTP.Stall.Duration)
		if tlsConfig != nil {
			l = tls.NewListener(l, tlsConfig)
		}
		return guard.Listen(l)
	}), nil
}
