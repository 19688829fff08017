package adminapi

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror"
)

// Mirrors returns a handler for mirrors. It passes other paths to h. m may be nil. PATH is the path of a mirror, or its
// URL at the origin. The answers to add and refresh come after the origin's, and the answer to refresh after the
// update.
//
//	GET  /mirrors[?after=PATH]          mirror.ListResult
//	GET  /mirrors/status?path=PATH      mirror.Status
//	POST /mirrors/add?path=PATH         mirror.Status
//	POST /mirrors/refresh?path=PATH     mirror.Status
//	POST /mirrors/remove?path=PATH      mirror.Status before
//	POST /mirrors/detach?path=PATH      mirror.Status before
func Mirrors(m *mirror.Mirrors, h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	reply := func(w http.ResponseWriter, v any, err error) {
		if err != nil {
			Refuse(w, mirrorStatus(fault.KindOf(err)), err.Error())
			return
		}
		Reply(w, http.StatusOK, v)
	}
	mux.HandleFunc("GET /mirrors", func(w http.ResponseWriter, r *http.Request) {
		if m == nil {
			reply(w, nil, errNoMirrors)
			return
		}
		list, err := m.List(r.Context(), r.URL.Query().Get("after"))
		reply(w, list, err)
	})
	end := func(do func(context.Context, git.RepoPath) error) func(context.Context, git.RepoPath) (mirror.Status, error) {
		return func(ctx context.Context, path git.RepoPath) (mirror.Status, error) {
			before, err := m.Status(ctx, path)
			if err == nil {
				err = do(ctx, path)
			}
			return before, err
		}
	}
	for action, do := range map[string]func(context.Context, git.RepoPath) (mirror.Status, error){
		"GET /mirrors/status": m.Status, "POST /mirrors/add": m.Add, "POST /mirrors/refresh": m.Refresh,
		"POST /mirrors/remove": end(m.Remove), "POST /mirrors/detach": end(m.Detach),
	} {
		mux.HandleFunc(action, func(w http.ResponseWriter, r *http.Request) {
			path, err := mirrorPath(m, r.URL.Query().Get("path"))
			if err != nil {
				reply(w, nil, err)
				return
			}
			status, err := do(r.Context(), path)
			reply(w, status, err)
		})
	}
	return mux
}

var errNoMirrors = fault.New(fault.NotFound,
	"this server has no mirrors: its configuration has no [[mirror]] table, or it is a gateway")

// mirrorPath returns the path of a mirror by that path or by the URL at the origin.
func mirrorPath(m *mirror.Mirrors, text string) (git.RepoPath, error) {
	if m == nil {
		return git.RepoPath{}, errNoMirrors
	}
	if !strings.Contains(text, "://") {
		path, err := git.ParseRepoPath(text)
		return path, fault.Wrap(fault.Invalid, "invalid path", err)
	}
	u, err := url.Parse(text)
	if err != nil {
		return git.RepoPath{}, fault.Wrap(fault.Invalid, "invalid URL", err)
	}
	path, ok := m.PathOf(u)
	if !ok {
		return path, fault.New(fault.NotFound, "no [[mirror]] table covers %s", u.Redacted())
	}
	return path, nil
}

// mirrorStatus returns the HTTP status of an error.
func mirrorStatus(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Exists:
		return http.StatusConflict
	case fault.Unauthenticated, fault.Denied:
		return http.StatusForbidden
	case fault.Unavailable, fault.Exhausted, fault.Deadline:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
