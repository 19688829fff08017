package e2e

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// packIn takes the pack out of an answer; ok is false if the answer is an error, or not whole.
func packIn(a answered) (pack []byte, ok bool) {
	r := pktline.NewReader(strings.NewReader(a.body))
	inPack := false
	for {
		typ, p, err := r.Next()
		switch {
		case err != nil:
			return nil, false
		case typ == pktline.Flush:
			_, _, err := r.Next()
			return pack, inPack && a.err == nil && errors.Is(err, io.EOF)
		case typ == pktline.Data && !inPack:
			inPack = string(p) == "packfile\n"
		case typ == pktline.Data && len(p) > 0 && p[0] == byte(pktline.BandData):
			pack = append(pack, p[1:]...)
		case typ == pktline.Data && len(p) > 0 && p[0] == byte(pktline.BandError):
			return nil, false
		}
	}
}

// objectsIn lists the objects of a pack with git, sorted; an error means that git finds the pack damaged.
func objectsIn(t *testing.T, dir string, pack []byte) ([]string, error) {
	t.Helper()
	file := filepath.Join(dir, "got.pack")
	if err := os.WriteFile(file, pack, 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file)
	defer os.Remove(filepath.Join(dir, "got.idx"))
	cmd := exec.Command("git", "index-pack", "-o", filepath.Join(dir, "got.idx"), file)
	cmd.Env, cmd.Dir = gittest.Env(), dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	index, err := os.ReadFile(filepath.Join(dir, "got.idx"))
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command("git", "show-index")
	cmd.Env, cmd.Stdin = gittest.Env(), bytes.NewReader(index)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for line := range strings.Lines(string(out)) {
		ids = append(ids, strings.Fields(line)[1])
	}
	slices.Sort(ids)
	return ids, nil
}

// TestHostileFlips: a byte that is wrong, anywhere in a repository. The answer is right, or an error, or a pack that a
// client finds to be damaged: it never looks well and is wrong. The seed makes the same flips again (threats:
// environment).
func TestHostileFlips(t *testing.T) {
	t.Parallel()
	const seed = 20260719
	flips := max(scaled(200), 40)
	v := attack(t, "[cache]\nenabled = false\n", func(root string) {
		dir := filepath.Join(root, "whole.git")
		copyRepo(t, gittest.Random(t, 3, gittest.Shape{Commits: 60, Branches: 4, Merge: 0.25}).Dir, dir)
		repo := gittest.At(t, dir)
		repo.Git("branch", "late", "main~3")
		repo.Git("repack", "-q", "-d")
		repo.Git("multi-pack-index", "write")
		repo.Git("commit-graph", "write", "--reachable", "--changed-paths")
		repo.Git("pack-refs", "--all")
		repo.Git("update-ref", "refs/heads/loose", "main~1")
	})
	v.errorsLogged = true
	whole := filepath.Join(v.root, "whole.git")
	fetchAll := fetching(append(wantsOf(gittest.At(t, whole)), "done")...)
	request := func(name string) answered { return v.post(name, name, fetchAll) }
	scratch := gittest.Init(t).Dir
	pack, ok := packIn(request("whole"))
	if !ok {
		t.Fatal("the repository is not served")
	}
	want, err := objectsIn(t, scratch, pack)
	if err != nil {
		t.Fatal(err)
	}
	refs := v.post("whole", "whole", packets("command=ls-refs", "|", "peel", "symrefs", "")).body
	var files []string
	for _, pattern := range []string{
		"objects/pack/*.pack", "objects/pack/*.pack", "objects/pack/*.idx", "objects/pack/multi-pack-index",
		"objects/info/commit-graph",
		"packed-refs", "HEAD", "config", "refs/heads/*", "objects/??/*",
	} {
		found, _ := filepath.Glob(filepath.Join(whole, pattern))
		files = append(files, found...)
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	counts := map[string]int{}
	for i := range flips {
		name := fmt.Sprint("flip", i)
		dir := filepath.Join(v.root, name+".git")
		copyRepo(t, whole, dir)
		file, _ := filepath.Rel(whole, files[rnd.IntN(len(files))])
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || len(text) == 0 {
			t.Fatal(file, err)
		}
		at, bit := rnd.IntN(len(text)), byte(1)<<rnd.IntN(8)
		text[at] ^= bit
		if err := os.Chmod(filepath.Join(dir, file), 0o644); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, file), string(text))
		a := request(name)
		what := fmt.Sprintf("seed %d, flip %d: bit %#x of byte %d of %s", seed, i, bit, at, file)
		if a.status == 0 {
			t.Errorf("%s: no answer: %v", what, a.err)
		}
		if pack, ok := packIn(a); !ok {
			counts["refused"]++
			if r := v.record(name); r.Error == "" {
				t.Errorf("%s: the log says %+v", what, r)
			}
		} else if got, err := objectsIn(t, scratch, pack); err != nil {
			counts["damaged"]++
		} else if !slices.Equal(got, want) {
			t.Errorf("%s: a pack of %d other objects where %d are right", what, len(got), len(want))
		} else {
			counts["right"]++
		}
		isRef := strings.HasPrefix(file, "refs/") || file == "HEAD" || file == "packed-refs" || file == "config"
		if b := v.post(name, name, packets("command=ls-refs", "|", "peel", "symrefs", "")); !isRef &&
			!strings.HasPrefix(file, "objects/") && b.body != refs {
			t.Errorf("%s: other refs: %.300q", what, b.body)
		} else if b.status == 0 {
			t.Errorf("%s: no refs: %v", what, b.err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%v", counts)
	if counts["right"] == 0 || counts["refused"] == 0 {
		t.Errorf("the flips do not meet what they should: %v", counts)
	}
	v.serves("whole")
	v.unharmed(200 << 20)
}

// wantsOf wants everything that the refs point at.
func wantsOf(repo *gittest.Repo) (lines []string) {
	for id := range strings.SplitSeq(repo.Git("for-each-ref", "--format=%(objectname)"), "\n") {
		if line := "want " + id; !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestHostileObjectFiles replaces packs, indexes, graphs and loose objects by pipes, sockets, directories and endless
// files. The server sends a response, or git waits no longer than its client.
func TestHostileObjectFiles(t *testing.T) {
	t.Parallel()
	v := attack(t, "[cache]\ngrace = \"0s\"\n[git]\ntime_limit = \"4s\"\n", nil)
	v.errorsLogged = true
	good := filepath.Join(v.root, "good.git")
	tip := v.idOf("good", "main")
	kinds := map[string]func(path string){
		"pipe":      func(p string) { fifo(t, p) },
		"socket":    func(p string) { socket(t, p) },
		"directory": func(p string) { _ = os.Mkdir(p, 0o755) },
		"zeros":     func(p string) { symlink(t, "/dev/zero", p) },
		"loop":      func(p string) { symlink(t, filepath.Base(p), p) },
		"empty":     func(p string) { write(t, p, "") },
	}
	places := []string{"objects/pack/pack-" + strings.Repeat("1", 40) + ".idx", "objects/pack/multi-pack-index",
		"objects/info/commit-graph",
		"objects/info/commit-graphs", "shallow", "objects/" + tip[:2], "objects/info", "PACK", "IDX"}
	var names []string
	for kind, make := range kinds {
		for i, place := range places {
			name := fmt.Sprint(kind, "-", i)
			dir := filepath.Join(v.root, name+".git")
			copyRepo(t, good, dir)
			packs, _ := filepath.Glob(filepath.Join(dir, "objects/pack/*.pack"))
			path := filepath.Join(dir, place)
			switch place {
			case "PACK":
				path = packs[0]
			case "IDX":
				path = strings.TrimSuffix(packs[0], ".pack") + ".idx"
			}
			_ = os.RemoveAll(path)
			if strings.HasSuffix(place, ".idx") {
				write(t, strings.TrimSuffix(path, ".idx")+".pack", "PACK")
			}
			make(path)
			names = append(names, name)
		}
	}
	for _, name := range names {
		a := v.post(name, name, fetching("want "+tip, "done"))
		if a.status == 0 || a.status == http.StatusOK && a.err == nil &&
			!strings.Contains(a.body, "PACK") && !strings.Contains(a.body, "ERR ") && !strings.Contains(a.body, "\x03") {
			t.Errorf("%s: %d (%v) %.300q", name, a.status, a.err, a.body)
		}
		r := v.record(name)
		if testing.Verbose() {
			t.Logf("%s: %s %.150s", name, r.Result, r.Error)
		}
		if _, ok := packIn(a); !ok && (r.Error == "" || r.Result == "ok") {
			t.Errorf("%s: the log says %+v", name, r)
		}
	}
	v.unharmed(200 << 20)
}

// TestHostileObjects: objects that unpack to far more than they are, or whose headers lie about their size (threats:
// bombs).
func TestHostileObjects(t *testing.T) {
	t.Parallel()
	v := attack(t, "[git]\ntime_limit = \"30s\"\n", nil)
	v.errorsLogged = true
	tip := v.idOf("good", "main")
	for i, head := range []string{
		"tag 167772160\x00object " + tip + "\ntype commit\ntag bomb\n\n",
		"commit 167772160\x00tree " + tip + "\n",
		"tree 167772160\x00",
		"blob 167772160\x00",
		"tag 4294967296\x00object " + tip + "\n",
		"tag 99999999999999999999999\x00object " + tip + "\n",
		"tag -1\x00object " + tip + "\n",
		"commit 18446744073709551615\x00tree ",
		strings.Repeat("x", 1<<20) + " 1\x00",
	} {
		name, bomb := fmt.Sprint("bomb", i), fmt.Sprintf("ab%038x", i)
		dir := filepath.Join(v.root, name+".git")
		copyRepo(t, filepath.Join(v.root, "good.git"), dir)
		var b bytes.Buffer
		z := zlib.NewWriter(&b)
		io.WriteString(z, head)
		z.Flush()
		n := b.Len()
		z.Write(make([]byte, 1<<20))
		z.Flush()
		zeros := bytes.Clone(b.Bytes()[n:])
		for range 160 { // more than twice the limit of bytes of an object
			b.Write(zeros)
		}
		write(t, filepath.Join(dir, "objects/ab", bomb[2:]), b.String())
		write(t, filepath.Join(dir, "refs/tags/bomb"), bomb+"\n")
		write(t, filepath.Join(dir, "refs/heads/bomb"), bomb+"\n")
		v.fresh()
		refs := v.post(name, name, packets("command=ls-refs", "|", "peel", "symrefs", ""))
		if refs.err != nil || refs.status != http.StatusOK || !strings.Contains(refs.body, "refs/heads/main") {
			t.Errorf("%s: refs: %d (%v) %.300q", name, refs.status, refs.err, refs.body)
		}
		v.wantsPack(name, v.post(name, name, fetching("want "+tip, "include-tag", "done")))
		for i, more := range []string{
			"deepen 1", "deepen-since 1", "deepen-not bomb", "shallow " + bomb, "have " + bomb,
			"filter sparse:oid=" + bomb, "filter sparse:oid=refs/heads/bomb:x",
		} {
			for _, want := range []string{tip, bomb}[:1+i%2] {
				if a := v.post(name, name, fetching("want "+want, more, "done")); a.status == 0 ||
					strings.Contains(a.body, v.root) {
					t.Errorf("%s, %s: %d (%v) %.300q", name, more, a.status, a.err, a.body)
				}
			}
		}
		v.took(name, 400<<20)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	v.unharmed(400 << 20)
}

// TestHostileClock: files whose times lie in the future, or do not change with their content.
func TestHostileClock(t *testing.T) {
	t.Parallel()
	v := attack(t, "", func(root string) {
		repo := gittest.At(t, filepath.Join(root, "good.git"))
		repo.Git("update-ref", "refs/heads/moving", "main")
	})
	dir := filepath.Join(v.root, "good.git")
	future := time.Now().Add(365 * 24 * time.Hour).Truncate(time.Second)
	stamp := func() {
		for _, name := range []string{"refs/heads/moving", "refs/heads", "refs", "packed-refs", "HEAD", "config",
			"objects/pack", "objects"} {
			if err := os.Chtimes(filepath.Join(dir, name), future, future); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	stamp()
	for i := range 40 {
		id := v.idOf("good", fmt.Sprint("main~", i%15))
		write(t, filepath.Join(dir, "refs/heads/moving"), id+"\n")
		stamp()
		if a := v.post("good", "clock", lsAll); !strings.Contains(a.body, id+" refs/heads/moving") {
			t.Fatalf("after change %d: %q, want %s", i, a.body, id)
		}
		if i%10 == 9 {
			gittest.At(t, dir).Git("pack-refs", "--all")
			stamp()
		}
	}
	v.unharmed(150 << 20)
}

// TestHostileGoing deletes, empties and recreates repositories during fetches.
func TestHostileGoing(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	v.errorsLogged = true
	good := filepath.Join(v.root, "good.git")
	body := fetching("want "+v.idOf("good", "main"), "done")
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			dir := filepath.Join(v.root, "going.git")
			switch i % 3 {
			case 0:
				_ = os.CopyFS(dir, os.DirFS(good))
			case 1:
				_ = os.RemoveAll(filepath.Join(dir, "objects"))
			case 2:
				_ = os.RemoveAll(dir)
			}
		}
	}()
	scratch := make([]string, 4)
	for i := range scratch {
		scratch[i] = gittest.Init(t).Dir
	}
	var packs atomic.Int64
	parallel(len(scratch), func(i int) {
		for range 60 {
			a := v.post("going", "going", body)
			if a.status == 0 {
				t.Errorf("no answer: %v", a.err)
			}
			if pack, ok := packIn(a); ok {
				packs.Add(1)
				if ids, err := objectsIn(t, scratch[i], pack); err != nil || len(ids) != 41 {
					t.Errorf("a whole answer of %d objects: %v", len(ids), err)
				}
			}
		}
	})
	stop.Store(true)
	<-done
	t.Logf("%d packs", packs.Load())
	v.unharmed(200 << 20)
}

// TestHostileDescriptors has a server run out of file descriptors. The server logs it, and recovers when there are
// some.
func TestHostileDescriptors(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	v.errorsLogged = true
	if !limitDescriptors(t, v.cmd.Process.Pid, v.descriptors()+20) {
		t.Skip("this system has no way to limit another process's file descriptors")
	}
	conns := make([]io.Closer, 60)
	for i := range conns {
		conns[i] = v.connect()
	}
	eventually(t, "the log tells that no connection can be accepted",
		func() bool { return strings.Contains(v.logged(), "cannot accept connections") })
	// Those that were accepted are answered, whatever it is.
	for range 5 {
		conn := v.connect()
		conns = append(conns, conn)
		io.WriteString(conn, fetchHead("good", "late", fmt.Sprintf("Content-Length: %d", len(lsAll)))+string(lsAll))
	}
	for _, conn := range conns[:len(conns)-5] {
		conn.Close()
	}
	for _, conn := range conns[len(conns)-5:] {
		if a := readAnswer(bufio.NewReader(conn.(io.Reader))); a.status == 0 {
			t.Errorf("a client that waited is not answered: %v", a.err)
		}
		conn.Close()
	}
	// Too few for a pack: an error, and then a pack again.
	if !limitDescriptors(t, v.cmd.Process.Pid, v.descriptors()+2) {
		t.Fatal("cannot limit descriptors again")
	}
	requests := 10
	if testing.Short() {
		requests = 2 // each waits for descriptors for some seconds
	}
	for range requests {
		a := v.post("good", "few", fetching("want "+v.idOf("good", "main"), "done"))
		if _, ok := packIn(a); a.status == 0 && a.err == nil ||
			a.status == http.StatusOK && !ok && !strings.Contains(a.body, "ERR ") && !strings.Contains(a.body, "\x03") {
			t.Errorf("with few descriptors: %d (%v) %.300q", a.status, a.err, a.body)
		}
	}
	limitDescriptors(t, v.cmd.Process.Pid, 1000)
	v.unharmed(150 << 20)
}
