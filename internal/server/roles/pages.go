package roles

import (
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/gateway/web"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
)

// newSearchAPI makes the code search API for the public listener.
func (s *server) newSearchAPI(o api.APIOptions) (*api.API, error) {
	o.Version, o.Registerer, o.Built = s.process.Version, s.reg, built()
	return api.NewAPI(o)
}

// newPages makes the handler of pages for browsers and of the search API. It returns nil if both are disabled.
func (s *server) newPages(files web.Files, searchAPI *api.API) (githttp.Pages, error) {
	var pages *web.Pages
	if s.cfg.HTTP.Pages {
		o := web.PageOptions{Files: files, Registerer: s.reg}
		switch {
		case s.search != nil:
			o.Searcher = s.search
		case s.remoteIndex != nil:
			o.Searcher = s.remoteIndex
		}
		var err error
		if pages, err = web.NewPages(o); err != nil {
			return nil, err
		}
		s.closers.push("pages", infallible(pages.Close))
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

// built returns the time of the commit from which this program was built, or the modification time of its file.
func built() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return t
			}
		}
	}
	if program, err := os.Executable(); err == nil {
		if info, err := os.Stat(program); err == nil {
			return info.ModTime()
		}
	}
	return time.Now()
}
