package uploadpack

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// testRequest is a request in the making.
type testRequest struct {
	command string
	args    []string
	client  *testClient // nil for ls-refs
	haves   bool
	filter  bool
	unlike  bool // a shallow server answers this better than git
	beyond  bool // deepen-relative, of which git before 2.54 has another understanding (docs/reference/protocol.md)
}

func (q *testRequest) add(format string, args ...any) {
	q.args = append(q.args, fmt.Sprintf(format, args...))
}

func (q *testRequest) has(arg string) bool {
	for _, a := range q.args {
		if a == arg {
			return true
		}
	}
	return false
}

// wants lists the objects that were asked for.
func (q *testRequest) wants(a *answer) (ids []string) {
	for _, arg := range q.args {
		if id, ok := strings.CutPrefix(arg, "want "); ok {
			ids = append(ids, id)
		}
	}
	for _, line := range a.lines["wanted-refs"] {
		id, _, _ := strings.Cut(line, " ")
		ids = append(ids, id)
	}
	return ids
}

func (q *testRequest) String() string { return q.command + "\n\t" + strings.Join(q.args, "\n\t") }

func (q *testRequest) bytes(format git.ObjectFormat) []byte {
	b := pktline.AppendLine(nil, "command="+q.command)
	b = pktline.AppendLine(b, "agent=git/test")
	b = pktline.AppendLine(b, "object-format="+format.String())
	b = pktline.AppendDelim(b)
	for _, a := range q.args {
		b = pktline.AppendLine(b, a)
	}
	return pktline.AppendFlush(b)
}

func pick[T any](rnd *rand.Rand, list []T) T { return list[rnd.IntN(len(list))] }

func chance(rnd *rand.Rand, percent int) bool { return rnd.IntN(100) < percent }

// randomLsRefs asks for refs.
func randomLsRefs(rnd *rand.Rand, s *testServer) *testRequest {
	q := &testRequest{command: "ls-refs"}
	for _, flag := range []string{"peel", "symrefs", "unborn"} {
		if chance(rnd, 60) {
			q.add("%s", flag)
		}
	}
	prefixes := []string{
		"HEAD", "refs/heads/", "refs/tags/", "refs/", "ref", "", "H", "HEADS", "refs/heads/main", "refs/heads/mai",
		"refs/tags/v1",
		"refs/tags/v1.0", "refs/tags/v1.", "refs//heads", "/refs", "refs/heads//", "\xff", "refs/heads/feature/b-ü",
		"refs/heads/feature",
		"refs/tags/nested^{}", "main", "refs/symbolic/", "refs/dangling", "refs/\x01", "refs/heads/main/", "~",
		"refs/z",
	}
	for range rnd.IntN(5) {
		p := pick(rnd, prefixes)
		if chance(rnd, 20) {
			p = pick(rnd, s.refs)
			p = p[:rnd.IntN(len(p)+1)]
		}
		q.add("ref-prefix %s", p)
	}
	rnd.Shuffle(len(q.args), func(i, j int) { q.args[i], q.args[j] = q.args[j], q.args[i] })
	return q
}

// version2Only are arguments that the older versions do not have, with the percentage of requests that have them.
var version2Only = map[string]int{"want-ref": 15, "sideband-all": 15, "wait-for-done": 5}

// randomFetch asks for a pack on behalf of a client. More is how often the arguments of version 2 are among the
// others.
func randomFetch(rnd *rand.Rand, s *testServer, c *testClient, more map[string]int) *testRequest {
	q := &testRequest{command: "fetch", client: c}
	for n := 1 + rnd.IntN(3); n > 0; n-- {
		switch p := rnd.IntN(100); {
		case p < 45:
			q.add("want %s", pick(rnd, s.tips))
		case p < 65:
			q.add("want %s", pick(rnd, s.commits))
		case p < 65+more["want-ref"]:
			q.add("want-ref %s", pick(rnd, s.refs))
		case p < 95:
			q.add("want %s", pick(rnd, s.tags))
		case p < 99:
			q.add("want %s", pick(rnd, s.others))
		default:
			q.add("want %s", pick(rnd, []string{strings.Repeat("1", len(s.tips[0])), "none", ""}))
		}
	}
	q.haveLines(rnd, c)
	for _, id := range c.shallow {
		q.add("shallow %s", id)
	}
	q.deepening(rnd, s)
	if chance(rnd, 25) {
		q.filter = true
		q.add("filter %s", randomFilter(rnd, s, 0))
	}
	for _, flag := range []struct {
		name    string
		percent int
	}{{"thin-pack", 60}, {"ofs-delta", 60}, {"include-tag", 40}, {"no-progress", 50},
		{"sideband-all", more["sideband-all"]}, {"wait-for-done", more["wait-for-done"]}} {
		if chance(rnd, flag.percent) {
			q.add("%s", flag.name)
		}
	}
	if !q.haves || chance(rnd, 50) {
		q.add("done")
	}
	rnd.Shuffle(len(q.args), func(i, j int) { q.args[i], q.args[j] = q.args[j], q.args[i] })
	return q
}

// haveLines names some of what the client has, its tips more than the rest.
func (q *testRequest) haveLines(rnd *rand.Rand, c *testClient) {
	if len(c.commits) == 0 || chance(rnd, 10) {
		return
	}
	for _, id := range c.tips {
		if chance(rnd, 80) {
			q.add("have %s", id)
			q.haves = true
		}
	}
	for n := rnd.IntN(1 + min(12, len(c.commits))); n > 0; n-- {
		q.add("have %s", pick(rnd, c.commits))
		q.haves = true
	}
}

func (q *testRequest) deepening(rnd *rand.Rand, s *testServer) {
	if chance(rnd, 65) {
		return
	}
	p := rnd.IntN(100)
	q.unlike = p >= 45
	switch {
	case p < 35:
		q.add("deepen %d", 1+rnd.IntN(6))
		if chance(rnd, 40) {
			q.unlike, q.beyond = true, true
			q.add("deepen-relative")
		}
	case p < 45:
		q.add("deepen 2147483647")
		if chance(rnd, 20) {
			q.unlike = true
			q.add("deepen-relative")
		}
	case p < 65:
		q.add("deepen-since %d", pick(rnd, s.dates)+int64(rnd.IntN(3))-1)
	case p < 85:
		q.add("deepen-not %s", strings.TrimPrefix(pick(rnd, s.refs),
			pick(rnd, []string{"", "refs/", "refs/heads/", "refs/tags/"})))
	case p < 95:
		q.add("deepen-not %s", pick(rnd, s.refs))
		q.add("deepen-since %d", pick(rnd, s.dates))
	default:
		q.add("%s", pick(rnd, []string{"deepen 0", "deepen -1", "deepen x", "deepen-since 0", "deepen-since x",
			"deepen-not nowhere", "deepen-relative"}))
	}
}

func randomFilter(rnd *rand.Rand, s *testServer, depth int) string {
	switch p := rnd.IntN(100); {
	case p < 25:
		return "blob:none"
	case p < 40:
		return fmt.Sprintf("blob:limit=%s", pick(rnd, []string{"0", "1", "50", "100", "1k", "1024", "1m", "0x40"}))
	case p < 60:
		return fmt.Sprintf("tree:%d", rnd.IntN(4))
	case p < 70:
		return "object:type=" + pick(rnd, []string{"commit", "tree", "blob", "tag"})
	case p < 80:
		return "sparse:oid=" + pick(rnd, s.sparse)
	case p < 97 && depth < 2:
		var subs []string
		for range 1 + rnd.IntN(3) {
			sub := randomFilter(rnd, s, depth+1)
			if chance(rnd, 30) {
				sub = strings.NewReplacer(":", "%3a", "=", "%3D").Replace(strings.ReplaceAll(sub, "%", "%25"))
			} else {
				sub = strings.ReplaceAll(sub, "%", "%25")
			}
			subs = append(subs, strings.ReplaceAll(sub, "+", "%2b"))
		}
		return "combine:" + strings.Join(subs, "+")
	case p < 98:
		return pick(rnd, []string{"blob:limit=", "blob:limit=x", "tree:", "tree:x", "sparse:path=x", "sparse:oid=none",
			"combine:", "combine:+", "object:type=x", "blob:none:x", "x", "auto"})
	}
	return "blob:none"
}
