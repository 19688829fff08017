package browse

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

// send sends a fragment in its frame. Without an ETag it is not kept.
func (q *request) send(f *fragment, etag string) error {
	header := q.w.Header()
	header.Del("Pragma")
	header.Del("Expires")
	if etag != "" {
		header.Set("ETag", etag)
	}
	header.Set("Vary", "Authorization, Cookie")
	scope := "public"
	if q.v.MaySignIn() { // others may see less, for example at another address
		scope = "private"
	}
	switch {
	case etag == "" && (f.raw == nil || f.raw.object == nil):
		header.Set("Cache-Control", "no-store")
	case q.revision != "" && q.revision == q.id.String(),
		q.left != "" && q.left == q.from.String() && q.right == q.id.String():
		header.Set("Cache-Control", scope+", max-age=86400, immutable")
	default:
		header.Set("Cache-Control", scope+", no-cache")
	}
	name := q.kind.name
	if name == "" {
		name = "repository"
	}
	if isCurrent(q.r, etag) {
		q.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	if f.raw != nil {
		for key, values := range f.raw.header {
			header[key] = values
		}
		if f.raw.object != nil {
			further := http.Header{"Content-Type": {f.raw.contentType}, "Cache-Control": header["Cache-Control"]}
			header.Set("Cache-Control", "no-store") // of errors
			q.v.SendLFS(*f.raw.object, further)
			return nil
		}
		return q.SendText(q.w, q.r, http.StatusOK, name, f.raw.contentType, f.raw.text)
	}
	head := page.Head{Kind: f.kind, Title: page.Visible(f.title), Query: page.InRepository(q.repo.String()) + " ",
		Index: q.kind.index && strings.HasPrefix(q.ref, "refs/") && q.r.URL.RawQuery == ""}
	head = q.HeadFor(q.r, q.v, head)
	if q.id.String() != q.revision {
		head.Feed = q.link("feed", q.here())
	}
	if q.kind.name == "" {
		host, path := q.v.Address(""), q.repo.String()
		_, host, _ = strings.Cut(strings.TrimSuffix(host, "/"), "://")
		head.GoGet = fmt.Sprintf("%s/%s git %s", host, path, q.v.Address(path))
	}
	if err := q.v.Hold(f.main.Len()); err != nil {
		return err
	}
	return q.SendPacked(q.w, q.r, name, head, &f.main)
}

// isCurrent reports whether the client has the response already.
func isCurrent(r *http.Request, etag string) bool {
	for sent := range strings.SplitSeq(strings.Join(r.Header["If-None-Match"], ","), ",") {
		if etag != "" && strings.TrimSpace(sent) == etag {
			return true
		}
	}
	return false
}
