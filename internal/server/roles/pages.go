package roles

import (
	"net/http"
	"runtime/debug"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/web"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
)

// newPages makes the handler of pages for browsers and of the search API. It returns nil if both are disabled.
func newPages(d *deps, files web.Files, index *api.APIOptions) (_ githttp.Pages, err error) {
	var searchAPI *api.API
	o := web.PageOptions{Files: files, Registerer: d.reg}
	if index != nil {
		index.Version, index.Registerer, index.Built = d.process.Version, d.reg, built()
		if searchAPI, err = api.NewAPI(*index); err != nil {
			return nil, err
		}
		o.Searcher = index.Searcher
	}
	var pages *web.Pages
	if d.cfg.HTTP.Pages {
		if pages, err = web.NewPages(o); err != nil {
			return nil, err
		}
		d.life.push("pages", infallible(pages.Close))
	}
	if pages == nil && searchAPI == nil {
		return nil, nil
	}
	return func(w http.ResponseWriter, r *http.Request, v *githttp.Visitor) error {
		switch {
		case pages != nil && pages.Has(r.URL.Path):
			return pages.Serve(w, r, v)
		case searchAPI != nil && searchAPI.Has(r.URL.Path):
			return searchAPI.Serve(w, r, v)
		}
		return fault.New(fault.NotFound, "nothing here; metrics and health are on the private listener, "+
			"and a repository is cloned by its path")
	}, nil
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
