package roles

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/router"
)

// nodeStatus is how a node is, as the admin socket tells it.
type nodeStatus struct {
	Name     string   `json:"name"`
	Weight   int      `json:"weight"`
	Up       bool     `json:"up"`
	Down     string   `json:"down,omitempty"` // why it cannot be reached
	Draining bool     `json:"draining"`
	InFlight int      `json:"in_flight"`
	Served   uint64   `json:"served"`
	Failed   uint64   `json:"failed"`
	Prefixes []string `json:"prefixes"` // of its routes; "" is all repositories
}

func statusOf(s router.Status) nodeStatus {
	n := nodeStatus{
		Name: s.Name, Weight: s.Weight, Up: s.Down == nil, Draining: s.Draining, InFlight: s.InFlight,
		Served: s.Served, Failed: s.Failed, Prefixes: s.Prefixes,
	}
	if s.Down != nil {
		n.Down = s.Down.Error()
	}
	return n
}

type adminError struct {
	Error string `json:"error"`
}

// newAdmin answers for the nodes of a router.
func newAdmin(routes *router.Router) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, _ *http.Request) {
		list := []nodeStatus{}
		for _, s := range routes.Status() {
			list = append(list, statusOf(s))
		}
		answerJSON(w, http.StatusOK, list)
	})
	for action, do := range map[string]func(string) error{"drain": routes.Drain, "undrain": routes.Undrain} {
		mux.HandleFunc("POST /nodes/{name}/"+action, func(w http.ResponseWriter, r *http.Request) {
			name := r.PathValue("name")
			if err := do(name); err != nil {
				answerJSON(w, http.StatusNotFound, adminError{fault.Message(err)})
				return
			}
			for _, s := range routes.Status() {
				if s.Name == name {
					answerJSON(w, http.StatusOK, statusOf(s))
					return
				}
			}
			answerJSON(w, http.StatusNotFound, adminError{"the node went away meanwhile"})
		})
	}
	return mux
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // who asked has gone away
}

// adminTimeout bounds a request on the admin socket.
const adminTimeout = 10 * time.Second

func newAdminServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadTimeout: adminTimeout, WriteTimeout: adminTimeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
