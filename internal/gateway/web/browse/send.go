package browse

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/search/query"
)

// setCaching sets the header for caches.
func (q *request) setCaching(etag string, isKept bool) {
	header := q.w.Header()
	header.Del("Pragma")
	header.Del("Expires")
	header.Set("Vary", "Authorization, Cookie")
	if !isKept {
		header.Set("Cache-Control", "no-store")
		return
	}
	if etag != "" {
		header.Set("ETag", etag)
	}
	scope, life := "public", "no-cache"
	if q.v.MaySignIn() { // others may see less, for example at another address
		scope = "private"
	}
	if q.at.isFixed() && (!q.kind.hasTwo || q.from.isFixed()) && !q.kind.byRefs {
		life = "max-age=86400, immutable"
	}
	header.Set("Cache-Control", scope+", "+life)
}

// head returns what the frame of the page depends on, beside its content.
func (q *request) head() page.Head {
	head := q.HeadFor(q.r, q.v, page.Head{Query: query.InRepository(q.repo.String()) + " ",
		Index: q.kind.index && strings.HasPrefix(q.at.ref, "refs/") && q.r.URL.RawQuery == ""})
	if q.at.id.String() != q.at.text {
		head.Feed = q.link("feed", q.here())
	}
	if q.kind.name == "" {
		host, path := q.v.Address(""), q.repo.String()
		_, host, _ = strings.Cut(strings.TrimSuffix(host, "/"), "://")
		head.GoGet = fmt.Sprintf("%s/%s git %s", host, path, q.v.Address(path))
	}
	return head
}

// send sends a fragment in its frame.
func (q *request) send(f *fragment, head page.Head, etag string) error {
	name := cmp.Or(q.kind.name, "repository")
	if f.raw == nil {
		if err := q.v.Hold(f.main.Len()); err != nil {
			return err
		}
		q.setCaching(etag, !f.noStore)
		head.Kind, head.Title = f.kind, page.Visible(f.title)
		return q.SendPacked(q.w, q.r, name, head, &f.main)
	}
	if err := q.v.Hold(len(f.raw.text) - q.held); err != nil { // it may be that of another request
		return err
	}
	q.setCaching(etag, !f.noStore || f.raw.object != nil)
	header := q.w.Header()
	for key, values := range f.raw.header {
		header[key] = values
	}
	if f.raw.object == nil {
		return q.SendText(q.w, q.r, http.StatusOK, name, f.raw.contentType, f.raw.text)
	}
	further := http.Header{"Content-Type": {f.raw.contentType}, "Cache-Control": header["Cache-Control"]}
	header.Set("Cache-Control", "no-store") // of errors
	q.v.SendLFS(*f.raw.object, further)
	return nil
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
