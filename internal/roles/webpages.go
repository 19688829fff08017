package roles

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/web"
)

// addPages gives a gateway its pages for browsers, beside what it answers already.
func (s *server) addPages(cfg config.Config, reg prometheus.Registerer, files web.Files, handler *githttp.Handler) error {
	if !cfg.HTTP.Pages {
		return nil
	}
	metrics := web.NewPageMetrics()
	register(reg, metrics)
	o := web.PageOptions{Files: files, Metrics: metrics}
	switch {
	case s.search != nil:
		o.Searcher = s.search
	case s.elsewhere != nil:
		o.Searcher = s.elsewhere
	}
	pages, err := web.NewPages(o)
	if err != nil {
		return err
	}
	below := s.close
	s.close = func() error {
		pages.Close()
		return below()
	}
	others := handler.Pages
	handler.Pages = func(w http.ResponseWriter, r *http.Request, v *githttp.Visitor) error {
		switch {
		case pages.Has(r.URL.Path):
			return pages.Serve(w, r, v)
		case others != nil:
			return others(w, r, v)
		}
		return fault.New(fault.NotFound, "nothing here; metrics and health are on the private listener")
	}
	return nil
}
