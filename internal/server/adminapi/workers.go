package adminapi

import (
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/app"
)

// WorkerStatus is the state of a worker of the application.
type WorkerStatus struct {
	Name     string  `json:"name"`
	Pool     string  `json:"pool"`
	Address  string  `json:"address"`
	State    string  `json:"state"` // up, starting, not ready, down, draining, drained
	Why      string  `json:"why,omitempty"`
	Given    bool    `json:"given"`   // the worker is given requests
	Seconds  float64 `json:"seconds"` // time since the last change of the state
	InFlight int     `json:"in_flight"`
	Slots    int     `json:"slots"`
	Served   uint64  `json:"served"`
	Failed   uint64  `json:"failed"`
	Drain    float64 `json:"drain_seconds"` // maximum time that a drain waits for running requests
}

func workerStatusOf(w app.State, drain time.Duration) WorkerStatus {
	return WorkerStatus{
		Name: w.Name, Pool: w.Pool, Address: w.Address, State: w.State, Why: w.Why, Given: w.Given,
		Seconds:  time.Since(w.Since).Seconds(),
		InFlight: w.InFlight, Slots: w.Slots, Served: w.Served, Failed: w.Failed, Drain: drain.Seconds(),
	}
}

// Workers returns a handler for the application's workers. It passes other paths to h. Both application and h may be
// nil. drain is the maximum time that a drain waits for the requests of a worker.
//
//	GET  /workers                            []WorkerStatus
//	POST /workers/{name}/drain[?force=true]  WorkerStatus; 409: too many would be out of service
//	POST /workers/{name}/undrain             WorkerStatus
func Workers(application *app.Proxy, drain time.Duration, h http.Handler) http.Handler {
	mux := http.NewServeMux()
	if h != nil {
		mux.Handle("/", h)
	}
	proxy := func(w http.ResponseWriter) *app.Proxy {
		if application == nil {
			Refuse(w, http.StatusNotFound,
				"there is no application: the configuration has neither app.workers nor [[app.pool]] tables")
		}
		return application
	}
	mux.HandleFunc("GET /workers", func(w http.ResponseWriter, _ *http.Request) {
		p := proxy(w)
		if p == nil {
			return
		}
		list := []WorkerStatus{}
		for _, state := range p.Workers() {
			list = append(list, workerStatusOf(state, drain))
		}
		Reply(w, http.StatusOK, list)
	})
	for action, do := range map[string]func(p *app.Proxy, name string, force bool) (app.State, error){
		"drain":   (*app.Proxy).Drain,
		"undrain": func(p *app.Proxy, name string, _ bool) (app.State, error) { return p.Undrain(name) },
	} {
		mux.HandleFunc("POST /workers/{name}/"+action, func(w http.ResponseWriter, r *http.Request) {
			p, name := proxy(w), r.PathValue("name")
			if p == nil {
				return
			}
			state, err := do(p, name, r.URL.Query().Get("force") == "true")
			if err != nil {
				status := http.StatusNotFound
				if fault.Is(err, fault.Exhausted) {
					status = http.StatusConflict
				}
				Refuse(w, status, fault.Message(err))
				return
			}
			Reply(w, http.StatusOK, workerStatusOf(state, drain))
		})
	}
	return mux
}
