package roles

import (
	"crypto/tls"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/web"
	"github.com/packhorse-git/packhorse/internal/gateway/web/account"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/gateway/web/status"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// addPages adds the pages for browsers and the search API to a handler, if they are enabled.
func addPages(d *deps, handler *githttp.Handler, from *gatewayOptions, access *auth.Service) (err error) {
	var searchAPI *api.API
	cfg := &d.cfg.Pages
	o := web.PageOptions{Options: page.Options{Title: cfg.Title, Logo: cfg.Logo, Text: cfg.Text, Style: cfg.Style,
		Build: d.process.Version + d.process.Revision, Registerer: d.reg}, SSH: cfg.SSH, Budget: cfg.CrawlBudget.Duration,
		Status: status.Sources{Role: string(d.role), Version: d.process.Version, Board: d.lanes.board,
			Mirrors: from.mirrorStates}}
	if d.role == config.RoleGateway {
		o.Status.Nodes = from.routes.Status
	}
	if index := from.search; index != nil {
		index.Version, index.Registerer, index.Built = d.process.Version, d.reg, built()
		if searchAPI, err = api.NewAPI(*index); err != nil {
			return err
		}
		o.Searcher, o.Status.Search = index.Searcher, index.Status
	}
	var pages *web.Pages
	if cfg.Enabled {
		key, err := keyFile(d, cfg.KeyFile, "pages.key")
		if err != nil {
			return err
		}
		o.Key, o.Access = []byte(key.Get()), access
		if cfg.Issuer != "" {
			secret := func() string { return "" }
			if cfg.ClientSecretFile != "" {
				file, err := credfile.LoadSecret(cfg.ClientSecretFile, d.log)
				if err != nil {
					return err
				}
				secret = file.Get
			}
			transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
			for _, rule := range d.cfg.Auth.OIDC {
				if rule.Issuer == cfg.Issuer && rule.CA != "" {
					trusted, err := credfile.LoadAuthorities(rule.CA, d.log)
					if err != nil {
						return err
					}
					transport.TLSClientConfig = &tls.Config{RootCAs: trusted.Pool(), MinVersion: tls.VersionTLS12}
				}
			}
			o.Issuer = &account.Issuer{URL: cfg.Issuer, ID: cfg.ClientID, Secret: secret,
				Client: httpguard.Client(transport)}
		}
		if pages, err = web.NewPages(o); err != nil {
			return err
		}
		d.life.push("pages", infallible(pages.Close))
		d.life.starts = append(d.life.starts, pages.Status.Start)
	}
	if pages == nil && searchAPI == nil {
		return nil
	}
	if pages != nil {
		handler.Sessions, handler.Gate = pages.Account, pages.Gate
	}
	handler.Pages = func(w http.ResponseWriter, r *http.Request, v *githttp.Visitor) error {
		switch {
		case searchAPI != nil && searchAPI.Has(r.URL.Path):
			return searchAPI.Serve(w, r, v)
		case pages != nil:
			return pages.Serve(w, r, v)
		}
		return web.ErrNoPage
	}
	return nil
}

// built returns the time of the commit from which this program was built, or the current time.
func built() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return t
			}
		}
	}
	return time.Now()
}
