package receivepack

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

// command2 is the head of a push that makes one ref.
func command2(t testing.TB, id git.ObjectID, name, features string) string {
	t.Helper()
	return commands(features, zeros(id)+" "+id.String()+" "+name)
}

func commands(features string, lines ...string) string {
	var b []byte
	for i, line := range lines {
		if i == 0 && features != "" {
			line += "\x00 " + features
		}
		b = pktline.AppendLine(b, line)
	}
	return string(pktline.AppendFlush(b))
}

func zeros(like git.ObjectID) string {
	return git.RawObjectID(make([]byte, like.Format().Size())).String()
}

// post sends a push as it is.
func (w *world) post(request string) (string, error) {
	w.t.Helper()
	reply := &recorder{}
	_, err := w.server.Serve(context.Background(), w.target(), node.Session{Stateless: true}, tester,
		strings.NewReader(request), reply)
	return reply.String(), untold(err)
}

// untold is an error of Serve that the response to the client did not contain.
func untold(err error) error {
	if _, told := errors.AsType[*node.ReportedError](err); told {
		return nil
	}
	return err
}

// oracle gives the same request to git itself, in a copy of the repository.
func (w *world) oracle(copied *gittest.Repo, request string) string {
	w.t.Helper()
	cmd := exec.Command("git", "-c", "receive.fsckObjects=true", "-c", "receive.advertisePushOptions=true", "-c",
		"receive.unpackLimit=1",
		"receive-pack", "--stateless-rpc", copied.Dir)
	cmd.Env, cmd.Stdin = gittest.Env(), strings.NewReader(request)
	out, _ := cmd.Output()
	return string(out)
}

const reports = "report-status-v2 side-band-64k object-format=sha1"

// The client never learns the repository's path on the server's disk, however git splits its text.
func TestPathsAreHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	id := w.Commit("one")
	if err := os.WriteFile(filepath.Join(w.Dir, "refs/heads/held.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := w.post(commands(reports, zeros(id)+" "+id.String()+" refs/heads/held") + packOf(t, w.Repo))
	if err != nil || strings.Contains(out, w.Dir) || !strings.Contains(out, "refs/heads/held.lock") {
		t.Errorf("%v\n%s", err, out)
	}
	text := "no '/srv/git/a.git/./x' /srv/git/a.gi /srv/git/a.git/ /srv/git/lender.git/objects\n"
	for size := range len(text) {
		var stdout []byte
		for piece := range slices.Chunk([]byte(text), size+1) {
			stdout = pktline.AppendBand(stdout, pktline.BandProgress, piece)
		}
		reply := &recorder{}
		o := output{response: reply, sideband: true, hidden: []string{"/srv/git/a.git/", "/srv/git/lender.git/"}}
		if err := o.copy(bytes.NewReader(stdout)); err != nil {
			t.Fatal(err)
		}
		var told []byte
		for packets := pktline.NewReader(strings.NewReader(reply.String())); ; {
			_, data, err := packets.Next()
			if err != nil {
				break
			}
			told = append(told, data[1:]...)
		}
		if want := "no './x' /srv/git/a.gi  objects\n"; string(told) != want {
			t.Errorf("in pieces of %d bytes: %q, want %q", size+1, told, want)
		}
	}
}

// Nor where the repositories are that it borrows from, of which git complains when they are gone.
func TestPathsOfLendersAreHidden(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for _, lender := range []string{home + "/gone.git/objects", home + "/x/../gone.git/objects"} {
		r := gittest.Init(t)
		if err := os.WriteFile(filepath.Join(r.Dir, "objects/info/alternates"), []byte(lender+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		w := worldAt(t, Options{}, r)
		client := gittest.Init(t)
		id := client.Commit("one")
		client.Git("update-ref", "refs/heads/main", id.String())
		out, err := w.post(commands(reports, zeros(id)+" "+id.String()+" refs/heads/main") + packOf(t, client))
		if untold(err) != nil || strings.Contains(out, home) || !strings.Contains(out, "alternate object path: ") {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// We split the list of capabilities where git does. Otherwise we could treat a push as atomic that git applies in
// part.
func TestCapabilitiesEndWhereGitsDo(t *testing.T) {
	t.Parallel()
	for list, atomic := range map[string]bool{
		" report-status atomic": true, "atomic\treport-status": true, "atomic=1": true, "report-status\u00a0atomic": false,
		"atomic\vreport-status": false,
		"atomic\u2028":          false, "atomically": false,
	} {
		f := capabilities{}
		if f.read(list); f.atomic != atomic {
			t.Errorf("%q: %v", list, f.atomic)
		}
	}
}

// For requests of every kind our response is the same as git's, byte for byte, and so are the refs after it.
func TestReportsAsGit(t *testing.T) {
	t.Parallel()
	source := gittest.Init(t)
	one := source.Commit("one")
	two := source.Commit("two", one)
	pack := packOf(t, source, two)
	empty := packOf(t, source)
	none, unknown := zeros(one), strings.Repeat("12", 20)
	for name, request := range map[string]string{
		"first":           commands(reports, none+" "+two.String()+" refs/heads/main") + pack,
		"no side-band":    commands("report-status", none+" "+two.String()+" refs/heads/main") + pack,
		"no capabilities": commands("", none+" "+two.String()+" refs/heads/main") + pack,
		"no report":       commands("side-band-64k", none+" "+two.String()+" refs/heads/main") + pack,
		"dash":            commands(reports, none+" "+two.String()+" refs/heads/-x") + pack,
		"dots": commands(reports, none+" "+two.String()+" refs/heads/..",
			none+" "+two.String()+" refs/heads/ok") + pack,
		"HEAD": commands(reports, none+" "+two.String()+" HEAD", none+" "+two.String()+" refs/heads/ok") +
			pack,
		"outside": commands(reports, none+" "+two.String()+" ../../config", none+" "+two.String()+" config") +
			pack,
		"locked name": commands(reports, none+" "+two.String()+" refs/heads/x.lock") + pack,
		"hidden": commands(reports, none+" "+two.String()+" refs/hidden/x",
			none+" "+two.String()+" refs/heads/ok") + pack,
		"twice": commands(reports, none+" "+two.String()+" refs/heads/a",
			none+" "+one.String()+" refs/heads/a") + pack,
		"above and below": commands(reports, none+" "+two.String()+" refs/heads/a",
			none+" "+one.String()+" refs/heads/a/b") + pack,
		"stale old":             commands(reports, one.String()+" "+two.String()+" refs/heads/main") + pack,
		"deletes what is not":   commands(reports, one.String()+" "+none+" refs/heads/nothing"),
		"deletes what is":       commands(reports, one.String()+" "+none+" refs/heads/there"),
		"deletes another value": commands(reports, two.String()+" "+none+" refs/heads/there"),
		"nothing to nothing":    commands(reports, none+" "+none+" refs/heads/main"),
		"no such object":        commands(reports, none+" "+unknown+" refs/heads/main") + empty,
		"atomic": commands(reports+" atomic", none+" "+two.String()+" refs/heads/a",
			one.String()+" "+two.String()+" refs/heads/b") + pack,
		"options": commands(reports+" push-options", none+" "+two.String()+" refs/heads/a") +
			string(pktline.AppendFlush(pktline.AppendLine(nil, "x=y"))) + pack,
		"a cut pack":      commands(reports, none+" "+two.String()+" refs/heads/main") + pack[:len(pack)-30],
		"a wrong trailer": commands(reports, none+" "+two.String()+" refs/heads/main") + pack[:len(pack)-1] + "?",
		"no pack":         commands(reports, none+" "+two.String()+" refs/heads/main"),
		"not a pack":      commands(reports, none+" "+two.String()+" refs/heads/main") + "PUCK" + pack[4:],
		"a tree on a branch": commands(reports, none+" "+source.Git("rev-parse",
			two.String()+"^{tree}")+" refs/heads/main") + pack,
		"4 KB name": commands(reports, none+" "+two.String()+" refs/heads/"+strings.Repeat("n", 4000)) + pack,
		"4 KB path": commands(reports, none+" "+two.String()+" refs/heads/"+strings.Repeat("n/", 1990)+"n") +
			pack,
		"many": commands(reports, many(none, two.String(), 300)...) + pack,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, copied := newWorld(t, Options{}), gittest.Init(t)
			for _, r := range []*gittest.Repo{w.Repo, copied} {
				r.Git("config", "receive.hideRefs", "refs/hidden")
				r.Git("update-ref", "refs/heads/there", r.Commit("one").String())
			}
			got, err := w.post(request)
			want := w.oracle(copied, request)
			if want == "" && err != nil { // git gave up, and so do we
				want = got
			}
			if merge(t, got) != merge(t, want) {
				t.Errorf("got %q (%v)\ngit says\n%q", got, err, want)
			}
			list := "--format=%(refname) %(objectname)"
			if got, want := w.Git("for-each-ref", list), copied.Git("for-each-ref", list); got != want {
				t.Errorf("the refs are\n%s\nand git's\n%s", got, want)
			}
			w.clean()
		})
	}
}

func many(from, to string, n int) (lines []string) {
	for i := range n {
		lines = append(lines, fmt.Sprintf("%s %s refs/heads/b%d", from, to, i))
	}
	return lines
}

// packOf makes a pack of what the commits reach.
func packOf(t *testing.T, r *gittest.Repo, tips ...git.ObjectID) string {
	t.Helper()
	var in strings.Builder
	for _, tip := range tips {
		fmt.Fprintln(&in, tip)
	}
	cmd := exec.Command("git", "pack-objects", "--revs", "--stdout", "-q")
	cmd.Dir, cmd.Env, cmd.Stdin = r.Dir, gittest.Env(), strings.NewReader(in.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// merge returns a response with its report in one piece, and without messages for people, which contain names of
// directories.
func merge(t *testing.T, answer string) string {
	t.Helper()
	var report, bands strings.Builder
	packets := pktline.NewReader(strings.NewReader(answer))
	for {
		kind, p, err := packets.Next()
		switch {
		case err != nil:
			return report.String() + bands.String()
		case kind != pktline.Data:
			bands.WriteString("|flush")
		case p[0] == 1:
			report.Write(p[1:])
		case p[0] == 2:
		default:
			bands.Write(p)
		}
	}
}

// A ref name that could be misread in a report, a log or a hook is refused before git runs.
func TestRefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{MaxCommands: 3, MaxOptions: 2})
	id := w.Commit("x").String()
	none := strings.Repeat("0", 40)
	line := none + " " + id + " refs/heads/main"
	options := func(list ...string) string {
		b := []byte(commands(reports+" push-options", line))
		for _, o := range list {
			b = pktline.Append(b, o)
		}
		return string(pktline.AppendFlush(b))
	}
	for name, request := range map[string]string{
		"newline in a name":  commands(reports, none+" "+id+" refs/heads/a\nok refs/heads/b"),
		"carriage return":    commands(reports, none+" "+id+" refs/heads/a\rb"),
		"space":              commands(reports, none+" "+id+" refs/heads/a funny refname"),
		"5 KB name":          commands(reports, none+" "+id+" refs/heads/"+strings.Repeat("n", 5000)),
		"no name":            commands(reports, none+" "+id+" "),
		"no ID":              commands(reports, "main"),
		"half an ID":         commands(reports, none+" "+id[:20]+" refs/heads/main"),
		"SHA-256 ID":         commands(reports, strings.Repeat("0", 64)+" "+strings.Repeat("1", 64)+" refs/heads/main"),
		"SHA-256":            commands("report-status object-format=sha256", line),
		"too many":           commands(reports, line, line, line, line),
		"certificate":        commands("", "push-cert\x00 report-status", "certificate version 0.1"),
		"bad shallow":        commands(reports, "shallow main", line),
		"newline in option":  options("a\nGIT_DIR=/"),
		"NUL in option":      options("a\x00b"),
		"long option":        options(strings.Repeat("o", 5000)),
		"too many options":   options("1", "2", "3"),
		"cut in the list":    commands(reports, line)[:50],
		"cut in the length":  commands(reports, line)[:2],
		"cut in the options": options("1")[:len(options("1"))-4],
		"bad length":         "00zz" + line,
		"endless list":       strings.Repeat("fff0"+strings.Repeat("x", 0xffec), 2),
	} {
		got, err := w.post(request)
		if !fault.Is(err, fault.Invalid) || got != "" || w.refs() != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := w.post("0000"); err != nil || got != "" {
		t.Errorf("the probe: %q, %v", got, err)
	}
	shallow := strings.Repeat(string(pktline.AppendLine(nil, "shallow "+id)), maxHead/53+10)
	if _, err := w.post(shallow); !fault.Is(err, fault.Invalid) {
		t.Errorf("too long a list: %v", err)
	}
	if all := <-w.server.memory; all != 0 {
		t.Errorf("%d bytes of requests are still held", all)
	} else {
		w.server.memory <- all
	}
}

// entryOf returns a packed object (gitformat-pack(5)): its kind, the size that it claims, the bytes before its data,
// and the data.
func entryOf(kind byte, size uint64, before string, data []byte) []byte {
	b := []byte{kind<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	b = append(b, before...)
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	_, _ = w.Write(data)
	_ = w.Close()
	return append(b, z.Bytes()...)
}

func packWith(count uint32, entries ...[]byte) string {
	b := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), count)
	for _, e := range entries {
		b = append(b, e...)
	}
	sum := sha1.Sum(b)
	return string(append(b, sum[:]...))
}

// Packs that were made to do harm change nothing, and leave nothing.
func TestHostilePacks(t *testing.T) {
	t.Parallel()
	blob := bytes.Repeat([]byte("a"), 100_000)
	blobID := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(blob)), blob...))
	// Each copies the base a thousand times: 100 MB out of some KB.
	bomb := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(len(blob))), 1000*65536)
	for range 1000 {
		bomb = append(bomb, 0x80|0x30, 0x00, 0x00) // size 0 stands for 65,536
	}
	tree := func(name string) []byte { return append([]byte("100644 "+name+"\x00"), blobID[:]...) }
	self := strings.Repeat("\x11", 20)
	for name, pack := range map[string]string{
		"bomb of deltas": packWith(2, entryOf(3, uint64(len(blob)), "", blob),
			entryOf(7, uint64(len(bomb)), string(blobID[:]), bomb)),
		"huge size": packWith(1, entryOf(3, 1<<40, "", blob)),
		"huge delta": packWith(2, entryOf(3, uint64(len(blob)), "", blob),
			entryOf(7, 20, string(blobID[:]), binary.AppendUvarint(binary.AppendUvarint(nil, uint64(len(blob))), 1<<50))),
		"cycle":               packWith(1, entryOf(7, 4, self, []byte{1, 1, 1, 'x'})),
		"offset to nowhere":   packWith(1, entryOf(6, 4, "\xff\xff\x7f", []byte{1, 1, 1, 'x'})),
		"more than there are": packWith(1<<31, entryOf(3, 1, "", []byte("x"))),
		"fewer":               packWith(1, entryOf(3, 1, "", []byte("x")), entryOf(3, 1, "", []byte("y"))),
		"unknown kind":        packWith(1, entryOf(5, 1, "", []byte("x"))),
		".git in a tree": packWith(2, entryOf(3, uint64(len(blob)), "", blob),
			entryOf(2, uint64(len(tree(".git"))), "", tree(".git"))),
		"slash in a tree":   packWith(1, entryOf(2, uint64(len(tree("a/b"))), "", tree("a/b"))),
		"commit of nothing": packWith(1, entryOf(1, 4, "", []byte("tree"))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{MaxSize: 10 << 20, MaxMemory: 32 << 20})
			id := w.Commit("there")
			got, err := w.post(command2(t, id, "refs/heads/main", reports) + pack)
			if refs := w.refs(); refs != "" {
				t.Errorf("a ref was made: %s", refs)
			}
			if err == nil && (!strings.Contains(got, "ng refs/heads/main") || strings.Contains(got, "unpack ok")) {
				t.Errorf("got %q", got)
			}
			w.clean()
		})
	}
	w := newWorld(t, Options{MaxSize: 1 << 20})
	random := make([]byte, 4<<20)
	for i := range random {
		random[i] = byte(i * i >> 7 * 31 >> 3)
	}
	big := packWith(1, entryOf(3, uint64(len(random)), "", random))
	w.Git("config", "receive.maxInputSize", "1000")
	if got, err := w.post(command2(t, w.Commit("x"), "refs/heads/main", reports) + big); err == nil &&
		!strings.Contains(got, "ng refs/heads/main") {
		t.Errorf("a pack that is too large: %q", got)
	}
	w.clean()
}

// Of many pushes that change one ref from the same value exactly one wins.
func TestOneOfManyWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{})
	base := w.Commit("base")
	w.Git("update-ref", "refs/heads/main", base.String())
	const pushes = 8
	for round := range 3 {
		old := w.ID("main")
		var won sync.Map
		var all sync.WaitGroup
		for i := range pushes {
			source := gittest.Init(t)
			root := source.Commit(fmt.Sprintf("%d %d", round, i))
			pack := packOf(t, source, root)
			all.Go(func() {
				got, err := w.post(commands(reports, old.String()+" "+root.String()+" refs/heads/main") + pack)
				if err == nil && strings.Contains(got, "ok refs/heads/main") {
					won.Store(root, true)
				}
			})
		}
		all.Wait()
		n := 0
		won.Range(func(id, _ any) bool {
			n++
			if w.ID("main") != id {
				t.Errorf("%v has won, and the ref is %v", id, w.ID("main"))
			}
			return true
		})
		if n != 1 {
			t.Errorf("%d of %d pushes have won", n, pushes)
		}
	}
	w.clean()
}
