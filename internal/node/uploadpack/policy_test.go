package uploadpack

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// gitDefaults are the defaults of git 2.39.
var gitDefaults = repo.Policy{KeepAlive: 5 * time.Second, Unborn: repo.UnbornAdvertise, ObjectInfo: true}

// policyTest is a repository whose configuration changes.
type policyTest struct {
	*testing.T
	*gittest.Repo
	plain string // its configuration as it was made
	git   string // the program that is the oracle
}

func newPolicyTest(t *testing.T) *policyTest {
	t.Helper()
	p := &policyTest{T: t, Repo: gittest.Init(t), git: "git"}
	text, err := os.ReadFile(filepath.Join(p.Dir, "config"))
	if err != nil {
		t.Fatal(err)
	}
	p.plain = string(text)
	return p
}

// newerGit makes a git that knows more the oracle, if there is one.
func (p *policyTest) newerGit() bool {
	if newer := os.Getenv("PACKHORSE_TEST_NEWER_GIT"); newer != "" {
		p.git = newer
		return true
	}
	return false
}

// configure writes the configuration and opens the repository with it.
func (p *policyTest) configure(text string, defaults *repo.Policy) (*testServer, error) {
	p.Helper()
	if err := os.WriteFile(filepath.Join(p.Dir, "config"), []byte(p.plain+text), 0o600); err != nil {
		p.Fatal(err)
	}
	r, err := openWith(p, p.Dir, repo.Options{Policy: defaults})
	if err != nil {
		return nil, err
	}
	p.Cleanup(func() { r.Close() })
	return &testServer{Repo: p.Repo, repo: r, format: r.Format}, nil
}

// ask runs the real upload-pack; failed means that it did not answer.
func (p *policyTest) ask(version string, request []byte, args ...string) (out string, failed bool, stderr string) {
	p.Helper()
	cmd := exec.Command(p.git, append(append([]string{"upload-pack", "--stateless-rpc"}, args...), p.Dir)...)
	cmd.Env = append(gittest.Env(), "GIT_PROTOCOL="+version)
	cmd.Stdin = bytes.NewReader(request)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		p.Fatal(err)
	}
	return o.String(), err != nil, e.String()
}

// capabilities returns the capabilities of an advertisement without values that differ between processes.
func capabilities(t testing.TB, text string) (list []string) {
	t.Helper()
	for r := pktline.NewReader(strings.NewReader(text)); ; {
		typ, line, err := r.Line()
		if err != nil || typ != pktline.Data {
			break
		}
		_, features, isV0 := strings.Cut(string(line), "\x00")
		if isV0 {
			list = append(list, strings.Fields(features)...)
		} else if !strings.Contains(string(line), " refs/") {
			list = append(list, string(line))
		}
	}
	for i, c := range list {
		if name, _, _ := strings.Cut(c, "="); name == "agent" || name == "session-id" {
			list[i] = name
		} else if c == "object-info=size" { // the git that we compare with does not tell yet what may be asked for
			list[i] = "object-info"
		}
	}
	slices.Sort(list)
	return list
}

// advertised returns our capabilities.
func advertised(t testing.TB, s *testServer, version protocol.Version) []string {
	t.Helper()
	response := newRecorder()
	session := node.Session{Version: version, Stateless: true}
	if _, err := New(keySource{}, Options{Wants: WantsAny}).Advertise(t.Context(), s.repo, session, "x",
		response); err != nil {
		t.Fatal(err)
	}
	return capabilities(t, response.String())
}

// policyKeys are the keys whose every value is compared with git.
var policyKeys = []struct {
	section, key string
	values       []string
}{
	{"uploadpack", "allowFilter", truths}, {"uploadpack", "allowRefInWant", truths},
	{"uploadpack", "allowSidebandAll", truths},
	{"uploadpack", "allowTipSHA1InWant", truths}, {"uploadpack", "allowReachableSHA1InWant", truths},
	{"uploadpack", "allowAnySHA1InWant", truths},
	{"transfer", "advertiseSID", truths}, {"uploadpackfilter", "allow", truths},
	{`uploadpackfilter "some kind"`, "allow", truths},
	{"uploadpack", "keepAlive", numbers}, {`uploadpackfilter "tree"`, "maxDepth", numbers},
	{`uploadpackfilter "other"`, "maxDepth", numbers},
	{"lsrefs", "unborn", []string{"= advertise", "= allow", "= ignore", "= Allow", "=", "", "= x\nunborn = allow"}},
}

var (
	truths  = []string{"", "=", "= true", "= Yes", "= off", "= 0", "= 1k", "= -1", "= perhaps", "= 9999999999", "= 1kk"}
	numbers = []string{"", "=", "= 0", "= -1", "= 7", "= 1k", "= 0x10", "= true", "= 3s", "= 9999999999",
		"= 99999999999999999999"}
)

// Any configuration has the same advertisement as with git. A configuration that ends git is an error.
func TestCapabilitiesAsGit(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	id := p.Commit("x")
	p.Git("update-ref", "refs/heads/main", id.String())
	fetch := (&testRequest{command: "fetch", args: []string{"want " + id.String(), "done"}}).bytes(git.SHA1)
	var texts []string
	for _, k := range policyKeys {
		for _, value := range k.values {
			texts = append(texts, fmt.Sprintf("[%s]\n\t%s %s\n", k.section, k.key, value))
		}
	}
	texts = append(texts, "[uploadpack]\nallowTipSHA1InWant\nallowAnySHA1InWant = no\n",
		"[uploadpack]\nallowAnySHA1InWant\nallowTipSHA1InWant = no\n",
		"[uploadpack]\nallowFilter = perhaps\nallowFilter = true\n",
		"[transfer]\nadvertiseSID = perhaps\nadvertiseSID = true\n")
	for _, text := range texts {
		v2, failed, why := p.ask2(fetch, text)
		v0, failed0, why0 := p.ask("version=0", nil, "--advertise-refs")
		s, err := p.configure(text, &gitDefaults)
		if (err != nil) != (failed || failed0 && !strings.Contains(text, "lsrefs")) ||
			err != nil && !fault.Is(err, fault.Corrupt) {
			t.Errorf("%q: %v; git: %s%s", text, err, why, why0)
		}
		if err != nil || failed {
			continue
		}
		if got, want := advertised(t, s, protocol.V2), capabilities(t, v2); !slices.Equal(got, want) {
			t.Errorf("%q, version 2:\n got %q\nwant %q", text, got, want)
		}
		if got, want := advertised(t, s, protocol.V0), capabilities(t, v0); !slices.Equal(got, want) {
			t.Errorf("%q, version 0:\n got %q\nwant %q", text, got, want)
		}
	}
}

// ask2 writes a configuration and asks git for its advertisement in version 2, for the refs and for a pack: not all
// read all keys.
func (p *policyTest) ask2(fetch []byte, text string) (advertisement string, failed bool, stderr string) {
	p.Helper()
	if err := os.WriteFile(filepath.Join(p.Dir, "config"), []byte(p.plain+text), 0o600); err != nil {
		p.Fatal(err)
	}
	if advertisement, failed, stderr = p.ask("version=2", nil, "--advertise-refs"); !failed {
		_, failed, stderr = p.ask("version=2", fetch)
	}
	return advertisement, failed, stderr
}

// transfer.advertiseObjectInfo is younger than the oldest git that the tests run with.
func TestObjectInfoKeyAsNewerGit(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	if !p.newerGit() {
		t.Skip("PACKHORSE_TEST_NEWER_GIT names no newer git")
	}
	for _, value := range append([]string{"= x\nadvertiseObjectInfo = 1", "= 1\nadvertiseObjectInfo = x"}, truths...) {
		text := "[transfer]\nadvertiseObjectInfo " + value + "\n"
		s, err := p.configure(text, &gitDefaults)
		out, failed, stderr := p.ask("version=2", nil, "--advertise-refs")
		if failed != (err != nil) {
			t.Errorf("%q: %v; git: %s", text, err, stderr)
		} else if err == nil && slices.Contains(advertised(t, s, protocol.V2),
			"object-info") != slices.Contains(capabilities(t, out), "object-info") {
			t.Errorf("%q: %q", text, out)
		}
	}
}

// filterRules and filterSpecs are what random rules and filters are made of.
var (
	filterRules = []string{
		"[uploadpackfilter]\nallow = false\n", "[uploadpackfilter]\nallow\n",
		"[uploadpackfilter \"tree\"]\nmaxDepth = 2\n", "[uploadpackfilter \"tree\"]\nallow = 0\n",
		"[uploadpackfilter \"tree\"]\nallow = 1\n", "[uploadpackfilter \"blob:none\"]\nallow = false\n",
		"[uploadpackfilter \"blob:none\"]\nallow = true\n",
		"[uploadpackfilter \"blob:limit\"]\nallow = false\n", "[uploadpackfilter \"combine\"]\nallow = true\n",
		"[uploadpackfilter \"combine\"]\nallow = false\n",
		"[uploadpackfilter \"object:type\"]\nallow = false\n", "[uploadpackfilter \"sparse:oid\"]\nallow = true\n",
		"[uploadpackfilter \"BLOB:none\"]\nallow = false\n",
		"[uploadpackfilter \"tree\"]\nmaxDepth = 0\n",
	}
	filterSpecs = []string{
		"blob:none", "blob:limit=1k", "tree:0", "tree:2", "tree:3", "object:type=commit", "sparse:oid=main:file",
		"combine:blob:none", "combine:tree:3",
		"combine:blob:none+tree:1", "combine:combine:blob:none%2btree:9+blob:limit=1", "combine:tree:1+tree:2",
		"combine:object:type=tree+tree:0",
	}
)

func TestFilterRulesAsGit(t *testing.T) {
	t.Parallel()
	const seed = 8
	rnd := rand.New(rand.NewPCG(seed, 0))
	p := newPolicyTest(t)
	id := p.Commit("x")
	p.Git("update-ref", "refs/heads/main", id.String())
	for range 25 {
		text := "[uploadpack]\nallowFilter = true\n"
		for range 1 + rnd.IntN(3) {
			text += pick(rnd, filterRules)
		}
		s, err := p.configure(text, &gitDefaults)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			spec := pick(rnd, filterSpecs)
			request := (&testRequest{command: "fetch", args: []string{"want " + id.String(), "filter " + spec,
				"done"}}).bytes(git.SHA1)
			_, failed, stderr := p.ask("version=2", request)
			_, _, err = s.serve(New(keySource{}, Options{Wants: WantsAny}), request)
			said := strings.TrimPrefix(strings.TrimSpace(stderr), "fatal: ")
			if failed != (err != nil) || failed && !strings.HasPrefix(spec, "combine") && fault.Message(err) != said {
				t.Errorf("seed %d, %q, %s: %v; git: %s", seed, text, spec, err, stderr)
			}
		}
	}
}

// Features that the configuration disables are refused as by git, in addition to not being advertised.
func TestSwitchedOffAsGit(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	id := p.Commit("x")
	p.Git("update-ref", "refs/heads/main", id.String())
	p.newerGit()
	s, err := p.configure("[transfer]\nadvertiseObjectInfo = false\n", &gitDefaults)
	if err != nil {
		t.Fatal(err)
	}
	want := "want " + id.String()
	for _, q := range []*testRequest{
		{command: "fetch", args: []string{want, "filter blob:none", "done"}},
		{command: "fetch", args: []string{"want-ref refs/heads/main", "done"}},
		{command: "fetch", args: []string{want, "sideband-all", "done"}},
		{command: "object-info", args: []string{"size", "oid " + id.String()}},
		{command: "bundle-uri"}, {command: "ls-refs\nsession-id=x"},
	} {
		if q.command == "object-info" && p.git == "git" {
			continue // 2.39 always answers it
		}
		request := q.bytes(git.SHA1)
		if name, more, ok := strings.Cut(q.command, "\n"); ok {
			request = pktline.AppendLine(nil, "command="+name)
			request = pktline.AppendFlush(pktline.AppendLine(request, more))
		}
		response, _, err := s.serve(New(keySource{}, Options{Wants: WantsAny}), request)
		if _, failed, stderr := p.ask("version=2", request); !failed || !fault.Is(err, fault.Invalid) ||
			response.Len() > 0 {
			t.Errorf("%s %q: %v; git: %s", q.command, q.args, err, stderr)
		}
	}
}

// An unborn HEAD is advertised according to the configuration.
func TestUnbornAsGit(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	for _, value := range []string{"advertise", "allow", "ignore"} {
		s, err := p.configure("[lsrefs]\nunborn = "+value+"\n", &gitDefaults)
		if err != nil {
			t.Fatal(err)
		}
		request := (&testRequest{command: "ls-refs", args: []string{"symrefs", "unborn"}}).bytes(git.SHA1)
		want, failed, stderr := p.ask("version=2", request)
		if got, _, err := s.serve(New(keySource{}, Options{}), request); err != nil || failed || got.String() != want {
			t.Errorf("%s: %q, %v; git: %q %s", value, got, err, want, stderr)
		}
	}
}

// An answer that is remembered does not outlive the configuration under which it was given.
func TestAnswersEndWithTheirPolicy(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	id := p.Commit("x")
	p.Git("update-ref", "refs/heads/main", id.String())
	a := newAnswersTest(t)
	request := (&testRequest{command: "fetch", args: []string{"want " + id.String(), "filter tree:3",
		"done"}}).bytes(git.SHA1)
	s, err := p.configure("[uploadpack]\nallowFilter = true\n", &gitDefaults)
	if err != nil {
		t.Fatal(err)
	}
	if a.serve(s.repo, request); !a.known(s.repo, request) {
		t.Fatal("the answer is not remembered")
	}
	for _, text := range []string{"[uploadpack]\nallowFilter = no\n",
		"[uploadpack]\nallowFilter = true\n[uploadpackfilter \"tree\"]\nmaxDepth = 2\n"} {
		old := s
		if s, err = p.configure(text, &gitDefaults); err != nil {
			t.Fatal(err)
		}
		if old.repo.Fresh(p.Dir) || a.known(s.repo, request) {
			t.Errorf("%q: the old handle is fresh: %t; the answer is known: %t", text, old.repo.Fresh(p.Dir),
				a.known(s.repo, request))
		}
		if _, _, err := s.serve(a.Server, request); err == nil {
			t.Errorf("%q: answered", text)
		}
	}
}

// The page about capabilities lists all of them.
func TestCapabilitiesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/reference/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	p := newPolicyTest(t)
	p.Git("update-ref", "refs/heads/main", p.Commit("x").String())
	s, err := p.configure("[uploadpack]\nallowAnySHA1InWant\nadvertiseBundleURIs\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, version := range []protocol.Version{protocol.V0, protocol.V1, protocol.V2} {
		for _, c := range advertised(t, s, version) {
			name, value, _ := strings.Cut(c, "=")
			names[name] = true
			if name == "fetch" || name == "ls-refs" {
				for feature := range strings.FieldsSeq(value) {
					names[feature] = true
				}
			}
		}
	}
	for _, name := range []string{"version 1", "version 2", "bundle-uri", "object-info", "sideband-all", "unborn",
		"allow-tip-sha1-in-want", "symref"} {
		if !names[name] {
			t.Errorf("%s is not advertised here", name)
		}
	}
	for name := range names {
		if !regexp.MustCompile("(?m)^\\|[^|]*[`=]" + regexp.QuoteMeta(name) + "[`=]").Match(page) {
			t.Errorf("docs/reference/protocol.md has no line for %s", name)
		}
	}
}

// The pack's source learns how long the client may be kept waiting.
func TestKeepAlivePolicy(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t)
	id := p.Commit("x")
	p.Git("update-ref", "refs/heads/main", id.String())
	for text, want := range map[string]time.Duration{"": 5 * time.Second, "keepAlive = 7": 7 * time.Second,
		"keepAlive = 0": 0, "keepAlive = -1": 0} {
		s, err := p.configure("[uploadpack]\n"+text+"\n", nil)
		if err != nil {
			t.Fatal(err)
		}
		after := time.Duration(-1)
		source := &scripted{size: -1, send: func(out packsource.Output) error { after = out.KeepAliveAfter(); return nil }}
		request := (&testRequest{command: "fetch", args: []string{"want " + id.String(), "done"}}).bytes(git.SHA1)
		if _, _, err := s.serve(New(source, Options{}), request); err != nil || after != want {
			t.Errorf("%q: %v, %v; want %v", text, after, err, want)
		}
	}
}
