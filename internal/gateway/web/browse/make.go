package browse

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
)

// The fields of query strings that change logs, and those that make pages costly.
var (
	logFields    = []string{"author", "text", "path", "skip"}
	costlyFields = append([]string{"wait"}, logFields...)
)

// answer sends the page.
func (q *request) answer() error {
	if err := q.check(); err != nil {
		return err
	}
	q.known = append(q.known, q.unknown...) // so that each call of the page need not check them
	key, head := q.key(), q.head()
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %#v", key, q.Build, head))
	etag := `W/"` + hex.EncodeToString(sum[:12]) + `"`
	if isCurrent(q.r, etag) {
		q.setCaching(etag, true)
		q.w.Header().Add("Vary", "Accept-Encoding")
		q.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	f, err := q.fragment(key)
	if f == nil || err != nil {
		return err
	}
	if f.noStore {
		etag = ""
	}
	return q.send(f, head, etag)
}

// fragment returns the fragment of the page. It is nil without an error if the visitor has a response.
func (q *request) fragment(key string) (f *fragment, err error) {
	f, made, err := q.cache.share(q.r.Context(), key)
	if made == nil {
		return f, err
	}
	defer func() { made(f) }()
	leave, done, err := q.enter()
	if done || err != nil {
		return nil, err
	}
	defer leave()
	shown, err := q.kind.show(q)
	if err != nil {
		return nil, err
	}
	shown.noStore = shown.noStore || q.busy
	if f, err = newFragment(shown); err != nil {
		return nil, err
	}
	if !f.noStore {
		q.cache.add(key, f)
	}
	if f.raw == nil { // the objects are not needed any more
		err, q.held = q.v.Hold(-q.held), 0
	}
	return f, err
}

// makingSize is the memory to make a page, as a multiple of the objects that it shows, about.
const makingSize = 20

// hold counts n bytes of an object until the page is made.
func (q *request) hold(n int) error {
	if q.kind.name != "raw" && !q.asPatch {
		n *= makingSize
	}
	q.held += n
	return q.v.Hold(n)
}

// enter admits a request for a page that has to be made. If done, it has a response.
func (q *request) enter() (leave func(), done bool, err error) {
	// single files of commits cost little
	isHistoric := q.at.ref == "" && q.at.id != (git.ObjectID{}) && q.kind.name != "raw" && q.kind.name != "file"
	isFiltered := slices.ContainsFunc(costlyFields, q.query.Has) || q.kind.name == "log" && q.path != ""
	switch {
	case q.v.Name() != "":
		return func() {}, false, nil
	case !q.kind.costly && !isHistoric && !isFiltered && !q.asPatch:
		leave, err = q.gate.ChargeSlow(q.r.RemoteAddr)
		return leave, false, err
	}
	if !q.asPatch { // which programs ask for, too
		if done, err = q.gate.Needs(q.w, q.r); done || err != nil {
			return nil, done, err
		}
	}
	leave, err = q.gate.Enter(q.r.Context(), q.r.RemoteAddr)
	return leave, false, err
}

// fragment is a content, rendered and compressed.
type fragment struct {
	title, kind string
	main        page.Packed
	raw         *rawContent
	noStore     bool // see content
}
