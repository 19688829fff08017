package control

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	v1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Random commits of a real history are made again from their files, with the same IDs. PACKHORSE_TEST_HISTORY is a
// repository to use instead of that of this project, PACKHORSE_TEST_COMMITS the number of commits, and PACKHORSE_SEED
// the seed of the random numbers.
func TestCreateEqualHistory(t *testing.T) {
	t.Parallel()
	own := gittest.At(t, "../../..")
	dir, head := os.Getenv("PACKHORSE_TEST_HISTORY"), "HEAD"
	if dir == "" {
		var err error
		if head, err = own.Try("rev-parse", "--verify", "-q", "HEAD"); err != nil {
			t.Skip("the project has no history here")
		}
		dir = own.Git("rev-parse", "--path-format=absolute", "--git-common-dir")
	}
	w := newWriter(t, receivepack.Options{})
	if err := os.RemoveAll(w.Dir); err != nil {
		t.Fatal(err)
	}
	gittest.Run(t, "", "", "clone", "-q", "--bare", dir, w.Dir)
	w.Git("update-ref", "refs/heads/source", w.Git("rev-parse", head))
	count, _ := strconv.Atoi(cmp.Or(os.Getenv("PACKHORSE_TEST_COMMITS"), "20"))
	seed, _ := strconv.ParseUint(os.Getenv("PACKHORSE_SEED"), 10, 64)
	ids := strings.Fields(w.Git("rev-list", "source"))
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	ids = ids[:min(count, len(ids))]
	var updates strings.Builder // branches at first parents, and refs for all parents: Git need not check their history
	for line := range strings.Lines(w.GitIn(strings.Join(ids, "\n")+"\n", "log", "--stdin", "--no-walk=unsorted",
		"--format=%H %P") + "\n") {
		for i, id := range strings.Fields(line)[1:] {
			fmt.Fprintf(&updates, "update refs/heads/again/%s/%d %s\n", line[:w.Format().HexSize()], i, id)
		}
	}
	w.GitIn(updates.String(), "update-ref", "--stdin")
	w.Git("pack-refs", "--all")
	w.Git("repack", "-d", "-q") // checkPacks knows only packs
	before := w.packs()
	from, err := repo.Open(w.Dir, repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	var mu sync.Mutex
	skipped, made := make(map[string]int), 0
	var group errgroup.Group
	group.SetLimit(16)
	for i, diff := range rawDiffs(w.Repo, ids) {
		if i%200 == 199 {
			w.Git("pack-refs", "--all")
		}
		group.Go(func() error {
			reason, err := w.again(from, ids[i], diff)
			mu.Lock()
			defer mu.Unlock()
			if reason != "" {
				skipped[reason]++
			} else if made++; err != nil {
				t.Errorf("%s: %v", ids[i], err)
			}
			return nil
		})
	}
	_ = group.Wait()
	t.Logf("PACKHORSE_SEED=%d: %d commits made again, skipped: %v", seed, made, skipped)
	if os.Getenv("PACKHORSE_TEST_HISTORY") == "" {
		w.Git("fsck", "--strict", "--no-dangling")
	}
	w.checkPacks(before)
}

func (w *writer) packs() []string {
	list, _ := filepath.Glob(filepath.Join(w.Dir, "objects/pack/*.pack"))
	return list
}

// checkPacks has git check the objects of new packs as fsck does, in a repository that has only those before.
func (w *writer) checkPacks(before []string) {
	w.t.Helper()
	other, made := gittest.Init(w.t), 0
	for _, name := range before {
		for _, ext := range []string{".pack", ".idx"} {
			from := strings.TrimSuffix(name, ".pack") + ext
			if err := os.Link(from, filepath.Join(other.Dir, "objects/pack", filepath.Base(from))); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	for _, name := range w.packs() {
		if !slices.Contains(before, name) {
			other.Git("index-pack", "--strict", "-o", filepath.Join(w.t.TempDir(), "idx"), name)
			made++
		}
	}
	w.t.Logf("%d packs", made)
}

// rawDiffs returns the changed files of commits, as git log --raw -z prints them.
func rawDiffs(of *gittest.Repo, ids []string) [][]string {
	out := of.GitIn(strings.Join(ids, "\n")+"\n", "log", "--stdin", "--no-walk=unsorted", "-z", "--root",
		"--diff-merges=first-parent", "--raw", "--no-abbrev", "--no-renames", "--format=commit %H")
	var diffs [][]string
	for _, token := range strings.Split(out, "\x00") {
		if token = strings.TrimLeft(token, "\n"); strings.HasPrefix(token, "commit ") {
			diffs = append(diffs, nil)
		} else if token != "" {
			diffs[len(diffs)-1] = append(diffs[len(diffs)-1], token)
		}
	}
	return diffs
}

// again makes a commit on the branch for it. It returns why it cannot be expressed, or an error if it has another ID.
func (w *writer) again(from *repo.Repo, id string, diff []string) (skipped string, err error) {
	_, data, err := from.Objects.Read(git.MustParseObjectID(id), 0)
	if err != nil {
		return "", err
	}
	header, message, _ := strings.Cut(string(data), "\n\n")
	r := &v1.CommitServiceCreateRequest{Repository: "app", Branch: "again/" + id + "/0", Create: true,
		RawMessage: []byte(message), AllowEmpty: true}
	for line := range strings.Lines(header + "\n") {
		keyword, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case keyword == "tree":
		case keyword == "parent" && r.Create:
			r.ExpectedHead, r.Create = value, false
		case keyword == "parent":
			r.Parents = append(r.Parents, value)
		case keyword == "author":
			r.Author = &v1.Author{Raw: []byte(value)}
		case keyword == "committer":
			r.Committer = &v1.Author{Raw: []byte(value)}
		default:
			r.Headers = append(r.Headers, line...)
		}
	}
	if _, err := edit.CheckExtra(r.GetHeaders()); err != nil {
		return err.Error(), nil
	}
	if strings.Contains(message, "\x00") {
		return "NUL in the message", nil
	}
	for ; len(diff) > 1; diff = diff[2:] {
		words := strings.Fields(diff[0][1:])
		c := remove("")
		switch {
		case words[4] == "D":
			c.GetDelete().RawPath = []byte(diff[1])
		case words[1] == "160000":
			c = &v1.FileChange{Change: &v1.FileChange_Submodule{Submodule: &v1.PutSubmodule{RawPath: []byte(diff[1]),
				Oid: words[3]}}}
		default:
			_, content, err := from.Objects.Read(git.MustParseObjectID(words[3]), 0)
			if err != nil {
				return "", err
			}
			c = &v1.FileChange{Change: &v1.FileChange_Put{Put: &v1.PutFile{RawPath: []byte(diff[1]), Mode: words[1],
				Source: &v1.PutFile_Content{Content: content}}}}
		}
		r.Changes = append(r.Changes, c)
	}
	made, err := w.createOrStream(r)
	if err == nil && made.GetCommit() != id {
		if tree, _ := w.Try("cat-file", "tree", id+"^{tree}"); strings.Contains(tree, "100664 ") {
			return "a mode that git writes no more", nil
		}
		err = fmt.Errorf("it was made again as %s", made.GetCommit())
	}
	return "", err
}

// createOrStream sends a large request as a stream.
func (w *writer) createOrStream(r *v1.CommitServiceCreateRequest) (*v1.CommitServiceCreateResponse, error) {
	if proto.Size(r) < 7<<20 {
		return w.try(r)
	}
	stream, changes := w.commits.CreateStream(w.t.Context()), r.GetChanges()
	r.Changes = nil
	_ = stream.Send(&v1.CreateStreamRequest{Start: r})
	for _, c := range changes {
		_ = stream.Send(&v1.CreateStreamRequest{Changes: []*v1.FileChange{c}})
	}
	answer, err := stream.CloseAndReceive()
	if err != nil {
		return nil, err
	}
	return answer.Msg.GetCreated(), nil
}
