package roles

import (
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/web/api"
)

// newPages makes what a public listener answers beside Git.
func newPages(reg prometheus.Registerer, o api.APIOptions) (githttp.Pages, error) {
	o.Metrics, o.Built = api.NewMetrics(), built()
	register(reg, o.Metrics)
	searches, err := api.NewAPI(o)
	if err != nil {
		return nil, err
	}
	return func(w http.ResponseWriter, r *http.Request, v *githttp.Visitor) error {
		if searches.Has(r.URL.Path) {
			return searches.Serve(w, r, v)
		}
		return fault.New(fault.NotFound, "nothing here; metrics and health are on the private listener")
	}, nil
}

// built is when this program was made, as far as it is known: the time of its commit, else of its file.
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
