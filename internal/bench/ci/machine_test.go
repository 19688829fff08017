package ci_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/bench/ci"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

const main = "refs/heads/main"

// exchange is one POST of git, and its response.
type exchange struct{ request, answer []byte }

// recorder is git http-backend behind a proxy that records requests and responses.
type recorder struct {
	url string

	mu    sync.Mutex
	posts []exchange
}

func record(t *testing.T, root string) *recorder {
	path := gittest.Run(t, root, "", "--exec-path")
	r := &recorder{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := &cgi.Handler{Path: filepath.Join(path, "git-http-backend"), InheritEnv: []string{"PATH"}, Stderr: io.Discard,
			Env: append([]string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_PROTOCOL=" +
				req.Header.Get("Git-Protocol")},
				gittest.Env()...)}
		body, _ := io.ReadAll(req.Body)
		req.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, req)
		if req.Method == http.MethodPost {
			if req.Header.Get("Content-Encoding") == "gzip" {
				z, err := gzip.NewReader(bytes.NewReader(body))
				if err == nil {
					body, _ = io.ReadAll(z)
				}
			}
			r.mu.Lock()
			r.posts = append(r.posts, exchange{body, bytes.Clone(answer.Body.Bytes())})
			r.mu.Unlock()
		}
		for k, v := range answer.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(answer.Code)
		w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(s.Close)
	r.url = s.URL + "/srv.git"
	return r
}

func (r *recorder) take() []exchange {
	r.mu.Lock()
	defer r.mu.Unlock()
	posts := r.posts
	r.posts = nil
	return posts
}

// upstream is a repository whose main branch grows, with merges, tags, and dates that sometimes decrease.
type upstream struct {
	t       *testing.T
	repo    *gittest.Repo
	rng     *rand.Rand
	commits int
	date    int64
	history *ci.History
}

func newUpstream(t *testing.T, dir string, seed uint64) *upstream {
	u := &upstream{t: t, repo: gittest.InitAt(t, dir), rng: rand.New(rand.NewPCG(seed, 0)), date: 1_700_000_000,
		history: ci.NewHistory()}
	u.grow(70)
	return u
}

// grow adds about n commits to main.
func (u *upstream) grow(n int) {
	var in strings.Builder
	commit := func(ref, from, merge string) {
		u.commits++
		u.date += int64(u.rng.IntN(4)) - 1
		fmt.Fprintf(&in, "commit %s\nmark :%d\ncommitter C <c@example.com> %d +0000\ndata 2\nx\n", ref, u.commits, u.date)
		if from != "" {
			fmt.Fprintf(&in, "from %s\n", from)
		}
		if merge != "" {
			fmt.Fprintf(&in, "merge %s\n", merge)
		}
		fmt.Fprintf(&in, "M 100644 inline file%d\ndata %d\n%d\n", u.rng.IntN(20), len(fmt.Sprintln(u.commits)), u.commits)
	}
	from := ""
	if u.commits > 0 {
		from = main + "^0"
	}
	for i := 0; i < n; i++ {
		if i > 0 && u.rng.IntN(5) == 0 {
			side := fmt.Sprintf("refs/heads/side%d", u.rng.IntN(4))
			back := fmt.Sprintf(":%d", u.commits)
			commit(side, back, "")
			commit(side, "", "")
			commit(main, "", side)
			i += 2
		} else {
			commit(main, from, "")
		}
		from = ""
		switch u.rng.IntN(8) {
		case 0:
			fmt.Fprintf(&in, "tag v%d\nfrom :%d\ntagger C <c@example.com> %d +0000\ndata 2\nt\n", u.commits, u.commits, u.date)
		case 1:
			fmt.Fprintf(&in, "reset refs/tags/light%d\nfrom :%d\n\n", u.commits, u.commits)
		}
	}
	u.repo.GitIn(in.String(), "fast-import", "--quiet", "--force")
	u.read()
}

func (u *upstream) tip() git.ObjectID { return u.repo.ID(main) }

// read adds the new commits to the model.
func (u *upstream) read() {
	log := u.repo.Git("log", "--topo-order", "--reverse", "--format="+ci.LogFormat, main)
	if err := u.history.Read(strings.NewReader(log)); err != nil {
		u.t.Fatal(err)
	}
	for line := range strings.Lines(u.repo.Git("for-each-ref", "--format=%(refname) %(objectname) %(*objectname)",
		"refs/tags") + "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		id, peeled := git.MustParseObjectID(fields[1]), git.ObjectID{}
		if len(fields) > 2 {
			peeled = git.MustParseObjectID(fields[2])
		}
		u.history.Tag(fields[0], id, peeled)
	}
}

// command is the command of the tool, from public documentation and from the sources of the tools.
func command(tool ci.Tool, job ci.Job, url string) []string {
	branch := "+" + main + ":refs/remotes/origin/main"
	pipeline := fmt.Sprintf("+%s:%s", job.Commit, job.Pipeline)
	switch tool {
	case ci.GitLab:
		return []string{"fetch", "origin", "--no-recurse-submodules", pipeline, branch, "--depth", "20", "--prune", "--quiet"}
	case ci.GitLabNoTags:
		return []string{"fetch", "origin", "--no-recurse-submodules", pipeline, branch, "--depth", "20", "--prune", "--quiet",
			"--no-tags"}
	case ci.Checkout:
		return []string{"fetch", "--no-tags", "--prune", "--no-recurse-submodules", "--progress", "--depth=1", "origin",
			fmt.Sprintf("+%s:refs/remotes/origin/main", job.Commit)}
	case ci.CheckoutAll:
		return []string{"fetch", "--prune", "--no-recurse-submodules", "--progress", "origin",
			"+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"}
	case ci.Jenkins:
		return []string{"fetch", "--no-tags", "--force", "--progress", "--", url, branch}
	}
	return nil
}

// machine is a model beside a real repository.
type machine struct {
	t     *testing.T
	model *ci.Machine
	up    *recorder
	dir   string
	caps  ci.Capabilities
}

func newMachine(t *testing.T, h *ci.History, tool ci.Tool, up *recorder, extra bool) *machine {
	m := &machine{t: t, model: ci.NewMachine(h, tool), up: up, dir: filepath.Join(t.TempDir(), "repo")}
	version, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(gittest.Run(t, t.TempDir(), "", "version")),
		"git version "), " ")
	m.caps.Format = git.SHA1
	for _, line := range []string{"agent=x", "ls-refs=unborn", "object-format=sha1", "fetch=shallow"} {
		m.caps.Read(line, "git/"+version)
	}
	if extra {
		features := "fetch=sideband-all"
		if tool != ci.GitLab && tool != ci.GitLabNoTags {
			features += " ref-in-want"
		}
		m.caps.Read(features, "")
	}
	return m
}

// run lets git run a job and compares each of its requests with the model's.
func (m *machine) run(job ci.Job) {
	m.t.Helper()
	if m.model.Tool == ci.Clone {
		os.RemoveAll(m.dir)
		gittest.Run(m.t, filepath.Dir(m.dir), "", "-c", "protocol.version=2", "clone", "--quiet", m.up.url, m.dir)
	} else {
		if _, err := os.Stat(m.dir); err != nil || !m.model.Tool.Keeps() {
			os.RemoveAll(m.dir)
			gittest.Run(m.t, filepath.Dir(m.dir), "", "init", "-q", "-b", "main", m.dir)
			gittest.Run(m.t, m.dir, "", "remote", "add", "origin", m.up.url)
		}
		gittest.Run(m.t, m.dir, "", append([]string{"-c", "protocol.version=2"}, command(m.model.Tool, job, m.up.url)...)...)
	}
	posts := m.up.take()
	var refs []ci.Ref
	if ask := m.model.LsRefs(&m.caps, main); ask != nil {
		m.same("ls-refs", posts[0].request, ask)
		refs = parseRefs(posts[0].answer)
		posts = posts[1:]
	}
	f, err := m.model.Fetch(job, refs, &m.caps)
	if err != nil {
		m.t.Fatal(err)
	}
	if f == nil {
		if len(posts) != 0 {
			m.t.Fatalf("git asks where the model does not:\n%s", show(posts[0].request))
		}
		return
	}
	for i, p := range posts {
		request := f.Request()
		m.same(fmt.Sprintf("round %d of %d", i+1, len(posts)), p.request, request)
		pack := m.read(f, p.answer)
		if pack {
			if m.model.Tool == ci.GitLab {
				break // what follows is git's second session, for tags
			}
		}
		if pack != (i == len(posts)-1) {
			m.t.Fatalf("round %d of %d: pack %v", i+1, len(posts), pack)
		}
	}
	if len(posts) == 0 {
		m.t.Fatalf("git does not ask where the model does:\n%s", show(f.Request()))
	}
	f.Finish()
	m.state()
}

// state compares the state of the model with the repository.
func (m *machine) state() {
	m.t.Helper()
	if !m.model.Tool.Keeps() {
		return
	}
	var want, got []string
	for line := range strings.Lines(gittest.Run(m.t, m.dir, "", "for-each-ref", "--format=%(refname) %(objectname)",
		"refs/remotes", "refs/pipelines")) {
		want = append(want, strings.TrimSpace(line))
	}
	for _, r := range m.model.Refs() {
		got = append(got, r.Name+" "+r.ID.String())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		m.t.Errorf("refs\n%q, git has\n%q", got, want)
	}
	file, _ := os.ReadFile(filepath.Join(m.dir, ".git/shallow"))
	shallow := strings.Fields(string(file))
	slices.Sort(shallow)
	got = nil
	for _, id := range m.model.Shallow() {
		got = append(got, id.String())
	}
	if !slices.Equal(got, shallow) {
		m.t.Errorf("boundary %q, git has %q", got, shallow)
	}
}

// same compares two requests. The common commits that a later round repeats may be in any order.
func (m *machine) same(what string, real, model []byte) {
	m.t.Helper()
	if bytes.Equal(real, model) {
		return
	}
	a, b := strings.Split(show(real), "\n"), strings.Split(show(model), "\n")
	if strings.HasPrefix(what, "round") && !strings.HasPrefix(what, "round 1 ") {
		slices.Sort(a)
		slices.Sort(b)
		if slices.Equal(a, b) {
			return
		}
	}
	m.t.Fatalf("%v, %s: git asks\n%q\nthe model\n%q", m.model.Tool, what, real, model)
}

func show(request []byte) string {
	var out strings.Builder
	r := pktline.NewReader(bytes.NewReader(request))
	for {
		typ, line, err := r.Line()
		if err != nil {
			return out.String()
		}
		fmt.Fprintf(&out, "%v %q\n", typ, line)
	}
}

// read gives the model the lines of a response up to the pack. It returns false without a pack.
func (m *machine) read(f *ci.Fetch, answer []byte) bool {
	r := pktline.NewReader(bytes.NewReader(answer))
	for {
		typ, line, err := r.Line()
		if err != nil || typ == pktline.Flush {
			return false
		}
		if len(line) > 0 && line[0] < ' ' {
			line = bytes.TrimSuffix(line[1:], []byte("\n"))
		}
		if string(line) == "packfile" {
			return true
		}
		if typ == pktline.Data {
			if err := f.Line(line); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}

func parseRefs(answer []byte) []ci.Ref {
	var refs []ci.Ref
	r := pktline.NewReader(bytes.NewReader(answer))
	for {
		typ, line, err := r.Line()
		if err != nil || typ != pktline.Data {
			return refs
		}
		fields := strings.Fields(string(line))
		refs = append(refs, ci.Ref{Name: fields[1], ID: git.MustParseObjectID(fields[0])})
	}
}

// TestWantRef has the request of git for a server with ref-in-want and sideband-all. git's own upload-pack sends the
// two sections of such a response in the wrong order, so another server recorded it.
func TestWantRef(t *testing.T) {
	t.Parallel()
	caps := ci.Capabilities{Agent: "git/2.39.5", Format: git.SHA1, RefInWant: true, SidebandAll: true}
	tip := git.MustParseObjectID("0ed6af7b72964796e4ca635222b9ef2a2afe35c0")
	m := ci.NewMachine(ci.NewHistory(), ci.GitLab)
	f, err := m.Fetch(ci.Job{Pipeline: "refs/pipelines/1", Commit: tip, Branch: main},
		[]ci.Ref{{Name: main, ID: tip}}, &caps)
	if err != nil {
		t.Fatal(err)
	}
	want := "0011command=fetch0014agent=git/2.39.50016object-format=sha10001000dthin-pack" +
		"000fno-progress000finclude-tag000dofs-delta0010sideband-all000ddeepen 20001dwant-ref refs/heads/main\n0032want " +
		"0ed6af7b72964796e4ca635222b9ef2a2afe35c0\n0009done\n0000"
	if got := f.Request(); string(got) != want {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}

// TestRequests compares the requests of every tool with those of git, over several jobs.
func TestRequests(t *testing.T) {
	t.Parallel()
	if v := gittest.Run(t, t.TempDir(), "", "version"); !strings.HasPrefix(v, "git version 2.39.") {
		t.Skipf("the models are those of git 2.39, this is %s", v)
	}
	for _, tool := range ci.Tools {
		for _, extra := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v,%v", tool, extra), func(t *testing.T) {
				if testing.Short() && (extra || tool.Keeps() && tool != ci.GitLab) {
					t.Skip("takes seconds")
				}
				t.Parallel()
				seed := uint64(tool) + 1
				t.Logf("seed %d", seed)
				rng := rand.New(rand.NewPCG(seed, 1))
				root := t.TempDir()
				up := newUpstream(t, filepath.Join(root, "srv.git"), seed)
				if extra {
					if tool != ci.GitLab && tool != ci.GitLabNoTags { // git answers want-ref with --depth in the wrong order
						up.repo.Git("config", "uploadpack.allowRefInWant", "true")
					}
					up.repo.Git("config", "uploadpack.allowSidebandAll", "true")
				}
				r := record(t, root)
				m := newMachine(t, up.history, tool, r, extra)
				jobs := 4
				if !tool.Keeps() {
					jobs = 2
				}
				for i := range jobs {
					if i > 0 && rng.IntN(4) > 0 { // else the same commit again
						up.grow(1 + rng.IntN(30))
					}
					job := ci.Job{Pipeline: fmt.Sprintf("refs/pipelines/%d", i), Commit: up.tip(), Branch: main}
					m.run(job)
					if i == 0 {
						left := ci.NewMachine(up.history, tool)
						if err := left.Leave(job); err != nil {
							t.Fatal(err)
						}
						if !slices.Equal(left.Refs(), m.model.Refs()) || !slices.Equal(left.Shallow(), m.model.Shallow()) {
							t.Errorf("Leave gives %v, %v; a real job %v, %v", left.Refs(), left.Shallow(), m.model.Refs(), m.model.Shallow())
						}
					}
				}
			})
		}
	}
}
