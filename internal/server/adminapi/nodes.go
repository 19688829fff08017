package adminapi

import (
	"net/http"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
)

// NodeStatus is the state of a node.
type NodeStatus struct {
	Name     string   `json:"name"`
	Weight   int      `json:"weight"`
	Up       bool     `json:"up"`
	Down     string   `json:"down,omitempty"` // why it is unreachable
	Draining bool     `json:"draining"`
	InFlight int      `json:"in_flight"`
	Served   uint64   `json:"served"`
	Failed   uint64   `json:"failed"`
	Prefixes []string `json:"prefixes"`                 // of its routes; "" is all repositories
	Store    string   `json:"store,omitempty"`          // ID of its object store
	Held     int      `json:"held,omitempty"`           // repositories of the store that are known to be on its disk
	Refused  string   `json:"pushes_refused,omitempty"` // why pushes to one of its routes are refused
}

func nodeStatusOf(s router.Status) NodeStatus {
	n := NodeStatus{
		Name: s.Name, Weight: s.Weight, Up: s.Down == nil, Draining: s.Draining, InFlight: s.InFlight,
		Served: s.Served, Failed: s.Failed, Prefixes: s.Prefixes,
		Store: s.Store, Held: s.Held, Refused: s.Refused,
	}
	if s.Down != nil {
		n.Down = s.Down.Error()
	}
	return n
}

// Nodes answers for the nodes of a router.
//
//	GET  /nodes                  []NodeStatus
//	POST /nodes/{name}/drain     NodeStatus
//	POST /nodes/{name}/undrain   NodeStatus
func Nodes(routes *router.Router) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, _ *http.Request) {
		list := []NodeStatus{}
		for _, s := range routes.Status() {
			list = append(list, nodeStatusOf(s))
		}
		Reply(w, http.StatusOK, list)
	})
	for action, do := range map[string]func(string) error{"drain": routes.Drain, "undrain": routes.Undrain} {
		mux.HandleFunc("POST /nodes/{name}/"+action, func(w http.ResponseWriter, r *http.Request) {
			name := r.PathValue("name")
			if err := do(name); err != nil {
				Refuse(w, http.StatusNotFound, fault.Message(err))
				return
			}
			for _, s := range routes.Status() {
				if s.Name == name {
					Reply(w, http.StatusOK, nodeStatusOf(s))
					return
				}
			}
			Refuse(w, http.StatusNotFound, "the node was removed meanwhile")
		})
	}
	return mux
}

// State returns up, down, draining or drained.
func (n *NodeStatus) State() string {
	switch {
	case n.Draining && n.InFlight == 0:
		return "drained"
	case n.Draining:
		return "draining"
	case !n.Up:
		return "down"
	}
	return "up"
}
