package receivepack

import (
	"crypto/sha1"
	"fmt"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

// rulesOf makes rules of lines "PATTERN KINDS".
func rulesOf(t *testing.T, lines ...string) (r node.RefRules) {
	t.Helper()
	for i, line := range lines {
		pattern, words, _ := strings.Cut(line, " ")
		p, err := node.ParseRefPattern(pattern)
		if err != nil {
			t.Fatal(err)
		}
		one := node.RefRule{Name: fmt.Sprint("rule ", i+1), Refs: []node.RefPattern{p}}
		for word := range strings.FieldsSeq(words) {
			one.May |= node.RefChangeOf(word)
		}
		r.Rules = append(r.Rules, one)
	}
	return r
}

// TestRules pushes what rules permit and what they do not, in place and in a store.
func TestRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	c := w.clone()
	w.mustPush(c, "main:main", "main:side")
	first := c.ID("main")
	c.Git("tag", "-a", "-m", "x", "v1")
	w.mustPush(c, "v1")
	w.Git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
	w.rules = rulesOf(t, "refs/heads/main write", "refs/heads/alias create write force delete",
		"refs/heads/side create", "refs/tags/** write create", "refs/** create delete")
	next := c.Commit("next").String()
	c.Git("update-ref", "refs/heads/main", c.Commit("second", first).String())
	refused := func(reason string, args ...string) {
		t.Helper()
		before := w.refs()
		if out, err := w.push(c, args...); err == nil || !strings.Contains(out, reason) {
			t.Errorf("push %q: %v, want %q\n%s", args, err, reason, out)
		}
		if after := w.refs(); after != before {
			t.Errorf("push %q changed refs:\n%s\n%s", args, before, after)
		}
	}
	w.mustPush(c, "main:main")
	refused("forced update refused by rule 1", "+"+next+":refs/heads/main")
	refused("forced update refused by rule 1", "--force", "--atomic", next+":refs/heads/main", next+":refs/heads/new")
	refused("deletion refused by rule 1", ":main")
	refused("update refused by rule 3", "main:side")
	c.Git("tag", "-a", "-f", "-m", "y", "v1", "main")
	refused("forced update refused by rule 4", "+v1")
	refused("deletion refused by rule 4", ":v1")
	if w.stored == nil { // a symbolic ref changes its target
		refused("forced update refused by rule 1", "+"+next+":refs/heads/alias")
		w.Git("symbolic-ref", "refs/heads/dangling", "refs/heads/absent")
		permitted := w.rules
		w.rules = rulesOf(t, "refs/heads/absent write", "refs/heads/dangling create write force delete")
		refused("creation refused by rule 1, which permits: write (of refs/heads/absent)", next+":refs/heads/dangling")
		w.rules = rulesOf(t, "refs/heads/absent create", "refs/heads/dangling create")
		w.mustPush(c, next+":refs/heads/dangling")
		w.Git("update-ref", "-d", "refs/heads/dangling") // and its target
		w.Git("update-ref", "--no-deref", "-d", "refs/heads/dangling")
		w.rules = permitted
	}
	w.mustPush(c, "main:refs/heads/new", "main:refs/tags/v2")
	w.mustPush(c, ":refs/heads/new")

	// some updates of a push are made, and others not
	out, err := w.push(c, "+"+next+":refs/heads/main", next+":refs/heads/more", ":side")
	if err == nil || !strings.Contains(out, "refused by rule 1") || !strings.Contains(out, "refused by rule 3") ||
		!strings.Contains(w.refs(), "refs/heads/more") || !strings.Contains(w.refs(), "refs/heads/side") {
		t.Errorf("a push of which a part is permitted: %v\n%s\n%s", err, out, w.refs())
	}

	// a client that lies about the old value
	before := w.refs()
	pack := append([]byte("PACK\x00\x00\x00\x02"), 0, 0, 0, 0)
	sum := sha1.Sum(pack)
	zero := strings.Repeat("0", 40)
	pusher := tester
	pusher.Rules = w.rules
	for _, line := range []string{zero + " " + next + " refs/heads/side", next + " " + next + " refs/heads/side",
		strings.Repeat("1", 40) + " " + next + " refs/heads/side"} {
		body := pktline.AppendFlush(pktline.AppendLine(nil, line+"\x00report-status object-format=sha1"))
		body = append(append(body, pack...), sum[:]...)
		r := &recorder{}
		_, err := w.server.Serve(t.Context(), w.target(), node.Session{Stateless: true}, pusher,
			strings.NewReader(string(body)), r)
		if after := w.refs(); after != before || err == nil {
			t.Errorf("%s: %v %s, refs:\n%s\n%s", line, err, r, before, after)
		}
	}

	// a credential for some refs
	p, _ := node.ParseRefPattern("refs/heads/ci/*")
	w.rules = node.RefRules{Only: []node.RefPattern{p}, Credential: "the token ci/1"}
	w.mustPush(c, "main:refs/heads/ci/1")
	w.mustPush(c, "+"+next+":refs/heads/ci/1")
	refused("refused by the token ci/1, which is for other refs", "main:refs/heads/other")
	w.clean()
}

// TestRefRulesMessage checks that rules stay the same between a gateway and a node, and what a node refuses.
func TestRefRulesMessage(t *testing.T) {
	t.Parallel()
	r := rulesOf(t, "refs/heads/main write", "refs/** none")
	r.Only, r.Credential = r.Rules[0].Refs, "the token x/1"
	got, err := node.RefRulesOf(r.Message())
	if err != nil || fmt.Sprint(got) != fmt.Sprint(r) {
		t.Errorf("%v %v, want %v", got, err, r)
	}
	m := r.Message()
	m.Rules[0].May = []string{"read"}
	if _, err := node.RefRulesOf(m); err == nil {
		t.Error("a word that is not a change was accepted")
	}
	m = r.Message()
	for range 20_000 {
		m.Rules = append(m.Rules, m.Rules[0])
	}
	if _, err := node.RefRulesOf(m); err == nil {
		t.Error("40,000 rules and patterns were accepted")
	}
}
