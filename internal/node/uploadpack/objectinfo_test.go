package uploadpack

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

func TestObjectInfoAsGit(t *testing.T) {
	t.Parallel()
	for seed, layout := range layouts {
		s := newTestServer(t, uint64(seed), layout)
		none := strings.Repeat("1", s.format.HexSize())
		all := append(append(append([]string{none}, s.commits...), s.tags...), s.others...)
		oids := func(ids ...string) (args []string) {
			for _, id := range ids {
				args = append(args, "oid "+id)
			}
			return args
		}
		for _, args := range [][]string{
			nil, {"size"}, append(oids(all...), "size"), append([]string{"size", "size"},
				oids(all[1], all[1], none)...),
		} {
			request := (&testRequest{command: "object-info", args: args}).bytes(s.format)
			want, failed, stderr := s.oracle(t, request)
			got, outcome, err := s.serve(New(keySource{}, Options{Wants: WantsAny}), request)
			if err != nil || failed || got.String() != string(want) || outcome.Command != protocol.CommandObjectInfo {
				t.Errorf("%s, %d arguments: %v\n got %.300q\nwant %.300q %s", layout, len(args), err, got, want, stderr)
			}
		}
	}
}

// A damaged object costs the others nothing.
func TestObjectInfoOfDamage(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	good, bad := g.Commit("good"), g.Commit("bad")
	if err := errors.Join(os.Remove(looseFile(g, bad)), os.WriteFile(looseFile(g, bad), []byte("damaged"),
		0o600)); err != nil {
		t.Fatal(err)
	}
	s := &testServer{Repo: g, repo: openRepo(t, g.Dir)}
	request := (&testRequest{command: "object-info", args: []string{"size", "oid " + bad.String(), "oid " +
		good.String()}}).bytes(git.SHA1)
	want, _, stderr := s.oracle(t, request)
	if got, _, err := s.serve(New(keySource{}, Options{Wants: WantsAny}), request); err != nil ||
		got.String() != string(want) {
		t.Errorf("%q, %v\ngit: %q, %s", got, err, want, stderr)
	}
}

// The directories are read once for many missing objects. An object that is added between two of them is found by the
// next request.
func TestObjectInfoLooksOnce(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	g.Git("update-ref", "refs/heads/main", g.Commit("a").String())
	r := openRepo(t, g.Dir)
	lookups := r.Objects.Lookups()
	none := git.MustParseObjectID(strings.Repeat("1", 40))
	if size, err := sizeOf(r.Objects, &lookups, none); size >= 0 || err != nil {
		t.Fatalf("a missing object: %d, %v", size, err)
	}
	id := g.Commit("b")
	g.Git("update-ref", "refs/heads/main", id.String())
	g.Git("repack", "-adq")
	if size, err := sizeOf(r.Objects, &lookups, id); size >= 0 || err != nil {
		t.Errorf("the directories were looked at again: %d, %v", size, err)
	}
	lookups = r.Objects.Lookups()
	size, err := sizeOf(r.Objects, &lookups, id)
	if want := g.Git("cat-file", "-s", id.String()); err != nil || strconv.FormatInt(size, 10) != want {
		t.Errorf("%d, %v; want %s", size, err, want)
	}
}

// Sizes are sent only if every object may be fetched, and only a limited number at once.
func TestObjectInfoRefused(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	id := g.Commit("a")
	g.Git("update-ref", "refs/heads/main", id.String())
	g.Git("update-ref", "refs/secret", id.String())
	info := (&testRequest{command: "object-info", args: []string{"size", "oid " + id.String()}}).bytes(git.SHA1)
	ask := func(o Options, request []byte) error {
		_, _, err := (&testServer{repo: openRepo(t, g.Dir)}).serve(New(keySource{}, o), request)
		return err
	}
	// Without "size" there is nothing but the IDs. Git 2.39 leaves it to chance.
	plain := (&testRequest{command: "object-info", args: []string{"oid " + id.String()}}).bytes(git.SHA1)
	got, _, err := (&testServer{repo: openRepo(t, g.Dir)}).serve(New(keySource{}, Options{Wants: WantsAny}), plain)
	if want := "002c" + id.String() + "0000"; err != nil || got.String() != want {
		t.Errorf("%q, %v", got, err)
	}
	for _, rule := range []Wants{WantsTip, WantsReachable} {
		if err := ask(Options{Wants: rule}, info); !fault.Is(err, fault.Invalid) {
			t.Errorf("wants = %s: %v", rule, err)
		}
	}
	for _, bad := range []string{"oid", "oid x", "oid " + id.String()[1:], "type", "oid " + id.String() + " "} {
		request := (&testRequest{command: "object-info", args: []string{"size", bad}}).bytes(git.SHA1)
		if err := ask(Options{Wants: WantsAny}, request); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	three := (&testRequest{command: "object-info", args: []string{"oid " + id.String(), "oid " + id.String(), "oid " +
		id.String()}}).bytes(git.SHA1)
	if err := ask(Options{Wants: WantsAny, Limits: protocol.Limits{Objects: 2}}, three); !fault.Is(err, fault.Invalid) {
		t.Errorf("more objects than allowed: %v", err)
	}
	if err := ask(Options{Wants: WantsAny, Limits: protocol.Limits{Objects: 3}}, three); err != nil {
		t.Error(err)
	}
	g.Git("config", "transfer.hideRefs", "refs/secret")
	if err := ask(Options{Wants: WantsAny}, info); !fault.Is(err, fault.Invalid) {
		t.Errorf("with hidden refs: %v", err)
	}
	g.Git("config", "uploadpack.allowAnySHA1InWant", "true")
	if err := ask(Options{Wants: WantsTip}, info); err != nil {
		t.Errorf("with hidden refs and the owner's consent: %v", err)
	}
}

func TestBundleURI(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	text := "[uploadpack]\nadvertiseBundleURIs = true\n[bundle]\nversion = 1\nmode = all\n[bundle \"Day.1\"]\nuri = " +
		"https://x.example/a\ncreationToken = 7\n" +
		"[bundle \"two\"]\nuri = bundles/two.bundle\n"
	s, err := p.configure(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	request := (&testRequest{command: "bundle-uri"}).bytes(git.SHA1)
	response, outcome, err := s.serve(New(keySource{}, Options{}), request)
	const want = "0014bundle.version=1" + "0013bundle.mode=all" + "0028bundle.Day.1.uri=https://x.example/a" +
		"0020bundle.Day.1.creationtoken=7" +
		"0025bundle.two.uri=bundles/two.bundle" + "0000"
	if err != nil || outcome.Command != protocol.CommandBundleURI || response.String() != want {
		t.Errorf("%q, %v", response, err)
	}
	bad := (&testRequest{command: "bundle-uri", args: []string{"x"}}).bytes(git.SHA1)
	if _, _, err := s.serve(New(keySource{}, Options{}), bad); !fault.Is(err, fault.Invalid) {
		t.Errorf("with an argument: %v", err)
	}
	if p.newerGit() {
		if out, _, stderr := p.ask("version=2", request); out != want {
			t.Errorf("%s: %q %s", p.git, out, stderr)
		}
		if out, _, _ := p.ask("version=2", nil, "--advertise-refs"); !bytes.Contains([]byte(out),
			[]byte("bundle-uri")) {
			t.Errorf("git advertises %q", out)
		}
	}
	got := advertised(t, s, protocol.V2)
	if !strings.Contains(strings.Join(got, "\n"), "bundle-uri") {
		t.Errorf("advertised: %q", got)
	}
	if s, err = p.configure(text+"[bundle \"three\"]\nuri = \"https://x.example/\\nbundle.four.uri=y\"\n",
		nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.serve(New(keySource{}, Options{}), request); !fault.Is(err, fault.Invalid) {
		t.Errorf("a list with a line break in a URI: %v", err)
	}
}
