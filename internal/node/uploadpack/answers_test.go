package uploadpack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// keySource is a Source of hits whose packs are nothing but their keys, so that equal answers have equal specs.
type keySource struct{}

func (keySource) Open(_ context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	packet := pktline.AppendBand(nil, pktline.BandData, spec.Key().String())
	return &scripted{size: int64(len(packet)), info: packsource.Info{Result: packsource.Hit},
		send: func(out packsource.Output) error {
			_, err := out.Write(packet)
			return err
		}}, nil
}

// answersTest is a server with a memory, to be held against servers that have none.
type answersTest struct {
	*Server
	t *testing.T
}

func newAnswersTest(t *testing.T) answersTest {
	return answersTest{New(keySource{}, Options{Wants: WantsAny}), t}
}

// known reports whether the request would be answered from memory now.
func (a answersTest) known(r *repo.Repo, request []byte) bool {
	a.t.Helper()
	q, err := a.answers.lookUp(a.t.Context(), r, version2, pktline.NewReader(bytes.NewReader(request)))
	if err != nil {
		a.t.Fatal(err)
	}
	return q.answer != nil
}

// serve asks the server and one that knows nothing yet: they have to say the same.
func (a answersTest) serve(r *repo.Repo, request []byte) (string, node.Outcome) {
	a.t.Helper()
	s := &testServer{repo: r}
	want, _, wantErr := s.serve(New(keySource{}, a.options), request)
	got, outcome, err := s.serve(a.Server, request)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) {
		a.t.Fatalf("%v; without memory: %v", err, wantErr)
	}
	if got.String() != want.String() {
		a.t.Fatalf("%q\nwithout memory:\n%q", got, want)
	}
	return got.String(), outcome
}

// fetchOf is a fetch with capabilities of its own.
func fetchOf(capabilities []string, args ...string) []byte {
	b := pktline.AppendLine(nil, "command=fetch")
	for _, c := range append(capabilities, "object-format=sha1") {
		b = pktline.AppendLine(b, c)
	}
	b = pktline.AppendDelim(b)
	for _, arg := range append(args, "done") {
		b = pktline.AppendLine(b, arg)
	}
	return pktline.AppendFlush(b)
}

// answersRepo has main with the annotated tag v1, and old, main's parent, which no ref names.
func answersRepo(t *testing.T, dir string) (g *gittest.Repo, main, old string) {
	t.Helper()
	g = gittest.InitAt(t, dir)
	a := g.Commit("a")
	b := g.Commit("b", a)
	g.Git("update-ref", "refs/heads/main", b.String())
	g.Git("tag", "-a", "-m", "x", "v1", "main")
	return g, b.String(), a.String()
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	g, main, old := answersRepo(t, filepath.Join(t.TempDir(), "r.git"))
	r := openRepo(t, g.Dir)
	agent := []string{"agent=git/test"}
	for name, test := range map[string]struct {
		request []byte
		kept    bool
	}{
		"clone":        {fetchOf(agent, "want "+main, "ofs-delta", "include-tag"), true},
		"tag":          {fetchOf(agent, "want "+g.Git("rev-parse", "v1")), true},
		"want-ref":     {fetchOf(agent, "want-ref refs/heads/main"), true},
		"depth":        {fetchOf(agent, "want "+main, "deepen 1"), true},
		"sideband-all": {fetchOf(agent, "want-ref refs/heads/main", "sideband-all"), true},
		"no-progress":  {fetchOf(agent, "want "+main, "no-progress"), true},
		"filter":       {fetchOf(agent, "want "+main, "filter sparse:oid=main:file"), true},
		"no tip":       {fetchOf(agent, "want "+old), false},
		"haves":        {fetchOf(agent, "want "+main, "have "+old), false},
		"boundary":     {fetchOf(agent, "want "+main, "shallow "+main), false},
		"session":      {fetchOf([]string{"agent=git/test", "session-id=1"}, "want "+main), false},
		"nothing":      {fetchOf(agent), false},
		"no such ref":  {fetchOf(agent, "want-ref refs/heads/none"), false},
		"long": {fetchOf(append(agent, strings.Split(strings.Repeat("server-option="+strings.Repeat("x",
			60<<10)+"\n", 5), "\n")[:5]...), "want "+main), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAnswersTest(t)
			if a.known(r, test.request) {
				t.Fatal("known before it was asked")
			}
			first, firstOutcome := a.serve(r, test.request)
			if got := a.known(r, test.request); got != test.kept {
				t.Fatalf("known after it was asked: %v, want %v", got, test.kept)
			}
			second, outcome := a.serve(r, test.request)
			if first != second {
				t.Fatalf("%q\nand then\n%q", first, second)
			}
			if test.kept && outcome.Fetch.Parse != 0 {
				t.Error("parsed again")
			}
			for _, known := range a.answers.byHash {
				if cap(known.sections) > len(known.sections) {
					t.Error("requests that run at once would append to the same memory")
				}
			}
			if outcome.Command != firstOutcome.Command || outcome.Agent != firstOutcome.Agent ||
				outcome.Fetch.Wants != firstOutcome.Fetch.Wants || outcome.Fetch.Key != firstOutcome.Fetch.Key {
				t.Errorf("the outcome was %+v and is %+v", firstOutcome, outcome)
			}
		})
	}
}

// An answer is computed again after a change of its sources.
func TestAnswersChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(g *gittest.Repo, old string) (reopen bool){
		"ref moved": func(g *gittest.Repo, old string) bool {
			g.Git("update-ref", "refs/heads/main",
				old)
			return false
		},
		"ref made": func(g *gittest.Repo, old string) bool {
			g.Git("update-ref", "refs/heads/new",
				old)
			return false
		},
		"ref gone": func(g *gittest.Repo, old string) bool {
			g.Git("update-ref", "-d",
				"refs/heads/main")
			return false
		},
		"tag moved": func(g *gittest.Repo, old string) bool {
			g.Git("tag", "-a", "-f", "-m", "y", "v1",
				old)
			return false
		},
		"refs packed": func(g *gittest.Repo, old string) bool { g.Git("pack-refs", "--all"); return false },
		"head moved": func(g *gittest.Repo, old string) bool {
			g.Git("symbolic-ref", "HEAD",
				"refs/heads/x")
			return false
		},
		"shallow": func(g *gittest.Repo, old string) bool {
			if err := os.WriteFile(filepath.Join(g.Dir, "shallow"), []byte(g.Git("rev-parse", "main")+"\n"),
				0o644); err != nil {
				t.Error(err)
			}
			return false
		},
		"made anew": func(g *gittest.Repo, old string) bool {
			copied := g.Dir + ".copy"
			if err := os.CopyFS(copied, os.DirFS(g.Dir)); err != nil {
				t.Error(err)
			}
			os.RemoveAll(g.Dir)
			if err := os.Rename(copied, g.Dir); err != nil {
				t.Error(err)
			}
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, main, old := answersRepo(t, filepath.Join(t.TempDir(), "r.git"))
			r := openRepo(t, g.Dir)
			a := newAnswersTest(t)
			requests := [][]byte{
				fetchOf(nil, "want "+main, "include-tag"), fetchOf(nil, "want-ref refs/heads/main"),
				fetchOf(nil, "want-ref refs/heads/main", "deepen 2"),
			}
			for _, request := range requests {
				a.serve(r, request)
				if !a.known(r, request) {
					t.Fatal("not kept")
				}
			}
			if change(g, old) {
				r = openRepo(t, g.Dir)
			}
			for _, request := range requests {
				if a.known(r, request) {
					t.Errorf("still known:\n%q", request)
				}
				a.serve(r, request)
			}
		})
	}
}

// Two repositories with the same content share no answer, and a different agent is a different question.
func TestAnswersApart(t *testing.T) {
	t.Parallel()
	g, main, _ := answersRepo(t, filepath.Join(t.TempDir(), "one.git"))
	other, _, _ := answersRepo(t, filepath.Join(t.TempDir(), "other.git"))
	r, s := openRepo(t, g.Dir), openRepo(t, other.Dir)
	a := newAnswersTest(t)
	request := fetchOf([]string{"agent=one"}, "want "+main)
	one, _ := a.serve(r, request)
	if a.known(s, request) {
		t.Error("known in another repository")
	}
	if answer, _ := a.serve(s, request); answer == one {
		t.Error("two repositories share a key")
	}
	a.serve(r, request)
	again := fetchOf([]string{"agent=two"}, "want "+main)
	if a.known(r, again) {
		t.Error("known from another agent")
	}
	if _, outcome := a.serve(r, again); outcome.Agent != "two" {
		t.Errorf("the agent is %q, want two", outcome.Agent)
	}
}

// The memory is bounded however many different questions come, short ones and long ones.
func TestAnswersBound(t *testing.T) {
	t.Parallel()
	g, main, _ := answersRepo(t, filepath.Join(t.TempDir(), "r.git"))
	r := openRepo(t, g.Dir)
	a := newAnswersTest(t)
	s := &testServer{repo: r}
	padding := "server-option=" + strings.Repeat("x", 50<<10)
	forgotten, last := false, 0
	for i := range 300 {
		capabilities := []string{fmt.Sprintf("agent=%d", i)}
		if i%3 > 0 {
			capabilities = append(capabilities, padding, padding, padding)
		}
		request := fetchOf(capabilities, "want "+main)
		if _, _, err := s.serve(a.Server, request); err != nil {
			t.Fatal(err)
		}
		if !a.known(r, request) {
			t.Fatal("not kept")
		}
		sum := 0
		for _, known := range a.answers.byHash {
			sum += cachedAnswerCost + len(known.request) + len(known.sections)
		}
		if a.answers.bytes < sum || a.answers.bytes > maxCachedBytes {
			t.Fatalf("%d bytes are counted of %d; at most %d may be", a.answers.bytes, sum, maxCachedBytes)
		}
		forgotten = forgotten || len(a.answers.byHash) <= last
		last = len(a.answers.byHash)
	}
	if !forgotten {
		t.Error("nothing was ever forgotten")
	}
	for hash := range a.answers.byHash {
		a.answers.forget(hash)
	}
	if a.answers.bytes != 0 {
		t.Errorf("%d bytes are counted of nothing", a.answers.bytes)
	}
}

// Requests that run at the same time as updates see each ref as it was when they began, or newer, and are never mixed
// up.
func TestAnswersUnderWrites(t *testing.T) {
	t.Parallel()
	const updates, readers = 25, 4
	g := gittest.Init(t)
	names := []string{"refs/heads/one", "refs/heads/two"}
	commits := []git.ObjectID{g.Commit("0")}
	number := map[string]int{commits[0].String(): 0}
	for i := 1; i <= updates; i++ {
		commits = append(commits, g.Commit(fmt.Sprint(i), commits[i-1]))
		number[commits[i].String()] = i
	}
	for _, name := range names {
		g.Git("update-ref", name, commits[0].String())
	}
	r := openRepo(t, g.Dir)
	server := New(keySource{}, Options{Wants: WantsTip})
	var begun, done [2]atomic.Int64
	var writing, reading sync.WaitGroup
	stop := make(chan struct{})
	for w, name := range names {
		writing.Go(func() {
			for i := 1; i <= updates; i++ {
				begun[w].Store(int64(i))
				if _, err := g.Try("update-ref", name, commits[i].String()); err != nil {
					t.Error(err)
					return
				}
				done[w].Store(int64(i))
			}
		})
	}
	var fromMemory atomic.Int64
	for i := range readers {
		request := fetchOf([]string{fmt.Sprintf("agent=%d", i%2)}, "want-ref "+names[0], "want-ref "+names[1])
		reading.Go(func() {
			for ended := false; !ended; {
				select {
				case <-stop:
					ended = true // once more, to see the end
				default:
				}
				least := [2]int64{done[0].Load(), done[1].Load()}
				response, outcome, err := (&testServer{repo: r}).serve(server, request)
				most := [2]int64{begun[0].Load(), begun[1].Load()}
				if err != nil {
					t.Error(err)
					return
				}
				if outcome.Fetch.Parse == 0 {
					fromMemory.Add(1)
				}
				got, err := parseAnswer(response.Bytes(), false)
				if err != nil {
					t.Errorf("%v\n%q", err, response)
					return
				}
				for w, line := range got.lines["wanted-refs"] {
					id, name, _ := strings.Cut(line, " ")
					if n, known := number[id]; name != names[w] || !known || int64(n) < least[w] || int64(n) > most[w] {
						t.Errorf("%s is commit %d (%s); it was at least %d before and at most %d after", name, n, id,
							least[w], most[w])
						return
					}
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	reading.Wait()
	if fromMemory.Load() == 0 {
		t.Error("nothing was answered from memory")
	}
}
