package browse

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// revision is a revision of an address.
type revision struct {
	text string // as in the address; "" means HEAD
	id   git.ObjectID
	ref  string // that names id; "": none
}

// isFixed reports whether the revision is the full ID of a commit.
func (r *revision) isFixed() bool { return r.text != "" && r.text == r.id.String() }

// maxParts is the maximum number of components of a revision.
const maxParts = 16

// resolve resolves the revision at the start of text. Empty text means HEAD.
func (q *request) resolve(must bool, text string) error {
	texts, paths := []string{"HEAD"}, []string{""}
	if text != "" {
		parts := strings.Split(text, "/")
		texts, paths = nil, nil
		for n := min(len(parts), maxParts); n > 0; n-- { // the longest one first
			if !q.kind.hasPath && n < len(parts) {
				break
			}
			revision, err := url.PathUnescape(strings.Join(parts[:n], "/"))
			path, err2 := url.PathUnescape(strings.Join(parts[n:], "/"))
			if err != nil || err2 != nil {
				return fault.New(fault.Invalid, "the address of this page has an invalid escape")
			}
			if utf8.ValidString(revision) { // calls take no others
				texts, paths = append(texts, revision), append(paths, path)
			}
		}
	}
	if len(texts) == 0 {
		return fault.New(fault.NotFound, "no such revision")
	}
	commits := make([]string, len(texts))
	for i, text := range texts {
		commits[i] = text + "^{commit}"
	}
	results, err := q.v.Revisions(commits)
	if err != nil {
		return err
	}
	for i, result := range results {
		switch {
		case result.Err == nil:
			q.at.text, q.path = texts[i], paths[i]
			q.found(&result)
			if strings.ContainsAny(q.at.text, "~^") { // the ref names a later commit, most often
				q.at.ref = ""
			}
			return nil
		case !fault.Is(result.Err, fault.NotFound) && !fault.Is(result.Err, fault.Invalid):
			return result.Err
		}
	}
	if !must { // the repository may be empty
		_, err := one[packhorsev1.GetResponse](q, packhorsev1connect.RepositoryServiceGetProcedure, &packhorsev1.GetRequest{})
		return err
	}
	return results[len(results)-1].Err
}

// found notes the commit of a revision.
func (q *request) found(result *node.Result) {
	q.at.id, q.at.ref, q.version, q.purges = result.ID, result.Ref, result.Version, result.Purges
	if q.at.ref == "" {
		q.unknown = append(q.unknown, q.at.id.String())
	} else {
		q.known = append(q.known, q.at.id.String())
	}
}

// resolveTwo resolves the revisions of A...B, or of A..B.
func (q *request) resolveTwo() error {
	left, right, ok := strings.Cut(q.rest, "..")
	right, q.mergeBase = strings.CutPrefix(right, ".")
	q.from.text, q.at.text = page.Unescape(left), page.Unescape(right)
	if q.rest == "" { // from the form
		q.from.text, q.at.text = strings.TrimSpace(q.query.Get("from")), strings.TrimSpace(q.query.Get("to"))
		q.mergeBase, ok = true, true
	}
	if !ok || q.from.text == "" || q.at.text == "" || !utf8.ValidString(q.from.text+q.at.text) {
		return fault.New(fault.Invalid, "a comparison is /-/compare/A...B, with two branches, tags or commits")
	}
	results, err := q.v.Revisions([]string{q.from.text + "^{commit}", q.at.text + "^{commit}"})
	for i := range results {
		if err == nil {
			err = results[i].Err
		}
		q.from.id = q.at.id
		q.found(&results[i])
	}
	return err
}

// check fails unless a visible ref reaches the commits. Successful calls are kept until the refs change.
func (q *request) check() error {
	for _, id := range q.unknown {
		key := fmt.Sprintf("%q %s %q %v %d", q.repo, id, q.purges, q.version, time.Now().Unix()/settingsSeconds)
		if q.visible.Contains(key) {
			continue
		}
		_, err := one[packhorsev1.CommitResponse](q, packhorsev1connect.ObjectServiceCommitProcedure,
			&packhorsev1.CommitRequest{Revision: id})
		if err != nil {
			return err
		}
		if q.version != (git.Version{}) {
			q.visible.Add(key, struct{}{})
		}
	}
	return nil
}
