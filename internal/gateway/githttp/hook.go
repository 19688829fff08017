package githttp

import (
	"io"
	"net/http"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

// hooksPath is followed by the name of a forge.
const hooksPath = "/-/hooks/"

// Hooks receives the webhooks of forges.
type Hooks interface {
	// Accepts reports whether there are webhooks of a forge.
	Accepts(forge string) bool
	// Receive accepts a webhook of a forge for work in the background. It returns the repository that the webhook is
	// about, as far as that is known, for the log.
	Receive(forge string, header http.Header, body func() ([]byte, error)) (git.RepoPath, error)
}

// freeHook is the size of webhooks that do not count against the memory of requests. Almost all are shorter.
const freeHook = 64 << 10

// hook answers POST /-/hooks/FORGE. The response is 202 before any work, and the same for every repository. Otherwise
// callers could find out which repositories are mirrored.
func (q *request) hook(forge string) {
	q.Op = gateway.Hook
	if !q.method(http.MethodPost) {
		return
	}
	memory := q.Memory.Hold(q.Caller(), freeHook)
	defer func() { memory.Shrink(0) }()
	repo, err := q.handler.Hooks.Receive(forge, q.r.Header, func() ([]byte, error) { return q.readWhole(&memory) })
	q.Repo = repo
	if err != nil {
		q.fail(err)
		return
	}
	q.send(http.StatusAccepted, "text/plain; charset=utf-8", []byte("accepted\n"))
}

// readWhole reads the whole body of a request whose operation has a limit, within the memory of requests.
func (q *request) readWhole(memory *admit.Holding) ([]byte, error) {
	limit, size := q.Op.Limit(q.Gateway).Size, q.r.ContentLength
	if size < 0 || q.r.Header.Get("Content-Encoding") != "" {
		size = limit
	}
	if err := memory.Grow(min(size, limit)); err != nil {
		return nil, err
	}
	body, err := q.readBody()
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if fault.KindOf(err) == fault.Internal {
		err = fault.Wrap(fault.Invalid, "the request's body was cut off or took too long", err)
	}
	return text, err
}
