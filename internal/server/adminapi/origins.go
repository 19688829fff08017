package adminapi

import (
	"net/http"

	"github.com/packhorse-git/packhorse/internal/mirror/origin"
)

// Origins returns a handler for origins. It passes other paths to h.
//
//	GET  /origins          list of origin.Status
func Origins(list func() []origin.Status, h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("GET /origins", func(w http.ResponseWriter, _ *http.Request) { Reply(w, http.StatusOK, list()) })
	return mux
}
