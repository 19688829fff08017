package roles

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/app"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
	"github.com/packhorse-git/packhorse/internal/gateway/web/status"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// gatewayParts are the parts of a gateway.
type gatewayParts struct {
	routes   *router.Router
	public   *port      // Git over HTTP, pages, the application
	ssh      *port      // Git over SSH; nil without ssh.address
	app      *app.Proxy // nil: there is none
	access   *auth.Service
	hostKeys []string // fingerprints of the SSH host keys, each after its kind
}

// gatewayOptions has the parts of a gateway that depend on where its node, its mirrors and its index are.
type gatewayOptions struct {
	routes  *router.Router
	tiers   *resolve.Tiers  // nil: the router resolves revisions
	search  *api.APIOptions // nil: there is no index
	mirrors auth.Prober     // asks the origins of mirrors; may be nil
	hooks   githttp.Hooks   // receives webhooks of forges; may be nil

	mirrorStates func(context.Context) (list []status.Mirror, complete bool) // see status.Sources

	access *auth.Access
}

// newGatewayParts makes the parts for clients: authentication, Git over HTTP and SSH, pages and the application.
func newGatewayParts(d *deps, o gatewayOptions) (*gatewayParts, error) {
	callers, err := newAuth(d, o.mirrors, o.access)
	if err != nil {
		return nil, err
	}
	d.life.push("authentication", callers.Close)
	d.lanes.reserveForKnown(callers.Configured)
	for _, source := range callers.Sources().List() {
		d.life.check("auth_"+source.Name, source.Check)
	}
	listeners, err := newClientListeners(d)
	if err != nil {
		return nil, err
	}
	d.life.notes = append(d.life.notes, listeners.notes)
	service := &auth.Service{Access: o.access, Auth: callers, Log: d.log}
	handler := newGitHandler(d, o.routes, o.tiers, callers)
	handler.Access = service
	d.life.drains = append(d.life.drains, handler.Drain)
	handler.Proxies, handler.Hooks = listeners.proxies, o.hooks
	if handler.LFS, err = newLFS(d, callers.Key); err != nil {
		return nil, err
	}
	if err = addPages(d, handler, &o, service); err != nil {
		return nil, err
	}
	g := &gatewayParts{routes: o.routes, access: service}
	if g.app, err = newApp(d); err != nil {
		return nil, err
	}
	if g.app != nil {
		handler.Application = application{g.app}
	}
	if g.public, err = newHTTPPort(d, handler, listeners); err != nil {
		return nil, err
	}
	g.ssh, g.hostKeys, err = newSSH(d, handler.Gateway, callers, listeners)
	return g, err
}

// newGitHandler makes the handler of requests to the public HTTP listener.
func newGitHandler(d *deps, routes *router.Router, tiers *resolve.Tiers, callers gateway.Auth) *githttp.Handler {
	lanes := &d.lanes
	g := gateway.Gateway{
		Router: routes, Resolver: routes, Auth: callers, Rename: foldCase(d.cfg.Auth.Origin), Mentions: d.mentionsOf,
		SendCredentials: len(d.cfg.Mirror) > 0, Pump: lanes.pump, Lanes: lanes.Lanes, Memory: lanes.memory,
		Metrics: gateway.NewMetrics(d.reg), Log: d.log, Board: lanes.board, SLI: lanes.sli, Tracer: lanes.tracer,
		MaxBody: int64(d.cfg.HTTP.MaxBody), ReadStall: d.cfg.HTTP.Stall.Duration,
		MaxPush: int64(d.cfg.Push.MaxSize), TimeLimit: d.cfg.Git.TimeLimit.Duration,
	}
	if patterns, err := auth.ParsePatterns(d.cfg.Push.Create); err == nil && len(patterns) > 0 { // checked before
		g.Creation = &gateway.Creation{Patterns: patterns}
	}
	if tiers != nil {
		g.Resolver, g.Changed = tiers, tiers.Changed
	}
	return githttp.New(githttp.Options{Gateway: &g, API: d.cfg.HTTP.API, CORSOrigins: d.cfg.HTTP.CORSOrigins})
}

// newHTTPPort makes the HTTP server of a handler. Its listener wraps those of the handler in TLS and a guard only.
// Below them, each connection must be a bulk.Socket.
func newHTTPPort(d *deps, handler *githttp.Handler, listeners *clientListeners) (*port, error) {
	cfg, log := d.cfg, d.log
	errorLog := newHTTPLog(log, d.reg)
	h := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second, // also of a TLS handshake
		IdleTimeout:       cfg.HTTP.IdleTimeout.Duration,
		MaxHeaderBytes:    int(cfg.HTTP.MaxHeader),
		ErrorLog:          errorLog.logger(),
	}
	guard := httpguard.New(httpguard.Options{Refused: handler.Refused})
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return clients.WithConn(guard.Context(bulk.Serve(ctx, c), c), c)
	}
	h.ConnState = func(c net.Conn, state http.ConnState) {
		guard.State(c, state)
		listeners.http.State(c, state)
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
		l = handler.Listen(listeners.listenHTTP(l, cfg.HTTP), cfg.HTTP.Stall.Duration)
		if tlsConfig != nil {
			l = tls.NewListener(l, tlsConfig)
		}
		return guard.Listen(l)
	}), nil
}
