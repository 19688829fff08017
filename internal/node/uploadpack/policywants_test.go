package uploadpack

import (
	"bytes"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// The three keys decide which unadvertised objects a client may want in version 0, as with git.
func TestWantsOfVersion0AsGit(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	a := p.Commit("a")
	b := p.Commit("b", a)
	below := p.Commit("below the hidden", b)
	hidden, nowhere := p.Commit("hidden", below), p.Commit("nowhere", b)
	p.Git("update-ref", "refs/heads/main", b.String())
	p.Git("update-ref", "refs/secret/x", hidden.String())
	for _, text := range []string{
		"", "allowTipSHA1InWant", "allowReachableSHA1InWant", "allowAnySHA1InWant",
		"allowTipSHA1InWant\nallowReachableSHA1InWant",
		"allowAnySHA1InWant\nallowTipSHA1InWant = false", "allowAnySHA1InWant\nallowAnySHA1InWant = false",
	} {
		s, err := p.configure("[transfer]\nhideRefs = refs/secret\n[uploadpack]\n"+text+"\n", &gitDefaults)
		if err != nil {
			t.Fatal(err)
		}
		for name, id := range map[string]string{
			"tip": b.String(), "below the tip": a.String(), "hidden tip": hidden.String(),
			"below a hidden tip": below.String(), "nowhere": nowhere.String(),
		} {
			request := pktline.AppendFlush(pktline.AppendLine(nil, "want "+id+" side-band-64k agent=x"))
			request = pktline.AppendLine(request, "done")
			_, failed, stderr := p.ask("version=0", request)
			session := node.Session{Version: protocol.V0, Stateless: true}
			_, err := New(keySource{}, Options{Wants: WantsAny}).Serve(t.Context(), s.repo, session,
				pktline.NewReader(bytes.NewReader(request)), newRecorder())
			if failed != (err != nil) {
				t.Errorf("%q, %s: %v; git: %s", text, name, err, stderr)
			}
		}
	}
}

// Wants that the server's own rule refuses are not advertised either.
func TestTipsAloneAreAdvertisedSo(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	p.Git("update-ref", "refs/heads/main", p.Commit("a").String())
	for text, want := range map[string]map[Wants]bool{
		"allowReachableSHA1InWant": {WantsAny: true, WantsReachable: true, WantsTip: false},
		// the repository's own word goes over the rule
		"allowAnySHA1InWant": {WantsAny: true, WantsReachable: true, WantsTip: true},
	} {
		s, err := p.configure("[uploadpack]\n"+text+"\n", &gitDefaults)
		if err != nil {
			t.Fatal(err)
		}
		for rule, want := range want {
			response := newRecorder()
			if _, err := New(keySource{}, Options{Wants: rule}).Advertise(t.Context(), s.repo,
				node.Session{Stateless: true}, "", response); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(response.String(), "allow-reachable-sha1-in-want"); got != want {
				t.Errorf("%s where %q may be wanted: advertised %v", text, rule, got)
			}
		}
	}
}
