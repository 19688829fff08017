package native_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// pushes is a server that receives one thin push after the other, and the client that pushes.
type pushes struct {
	t               *testing.T
	server, client  *gittest.Repo
	commits         []git.ObjectID // the oldest first
	plain, composed packsource.Source
	longest         int // chain of deltas in all packs
	checked         int // packs
}

// newPushes makes a client with n commits, each of which changes a line of a file and a small file.
func newPushes(t *testing.T, format string, n, unpackLimit int) *pushes {
	p := &pushes{t: t, client: gittest.Init(t, "--object-format="+format),
		server: gittest.Init(t, "--object-format="+format), plain: newSource(t, true),
		composed: newCache(t, t.TempDir(), 1<<30)}
	p.server.Git("config", "receive.unpackLimit", fmt.Sprint(unpackLimit))
	p.server.Git("config", "receive.autogc", "false")
	rnd := rand.New(rand.NewPCG(1, 1))
	lines := make([]string, 150)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %d %d\n", i, rnd.Uint64())
	}
	var in strings.Builder
	for i := range n {
		lines[i*7%len(lines)] = fmt.Sprintf("changed %d\n", i)
		data := strings.Join(lines, "")
		fmt.Fprintf(&in, "commit refs/heads/main\ncommitter C <c@example.com> %d +0000\ndata 1\nx\n", 1_700_000_000+i)
		fmt.Fprintf(&in, "M 100644 inline dir/sub/big\ndata %d\n%s\n", len(data), data)
		fmt.Fprintf(&in, "M 100644 inline dir/%d\ndata 3\n%03d\n", i%20, i)
	}
	p.client.GitIn(in.String(), "fast-import", "--quiet")
	for _, id := range strings.Fields(p.client.Git("rev-list", "--reverse", "main")) {
		p.commits = append(p.commits, git.MustParseObjectID(id))
	}
	return p
}

// push pushes the nth commit.
func (p *pushes) push(n int) {
	p.t.Helper()
	p.client.Git("push", "-q", p.server.Dir, p.commits[n].String()+":refs/heads/main")
}

// maintain does what an administrator does now and then. The tip pack is that of maintenance.
func (p *pushes) maintain(n int) {
	p.t.Helper()
	addTip(p.t, p.server, "main")
	p.server.Git([][]string{{"repack", "-dq"}, {"repack", "-dq", "--geometric=2"}, {"repack", "-adqb"},
		{"gc", "-q", "--prune=now"}}[n%4]...)
}

// clone is the request for all of the nth commit.
func (p *pushes) clone(n int) packsource.Spec {
	return packsource.Spec{Repo: sourcetest.Repository(p.server), Wants: p.commits[n : n+1], Offset: true}
}

// others lists the other requests for the nth commit.
func (p *pushes) others(n int) (list []packsource.Spec) {
	for _, change := range []func(s *packsource.Spec){
		func(s *packsource.Spec) { s.Offset = false },
		func(s *packsource.Spec) { s.Filter = "blob:none" },
		func(s *packsource.Spec) { s.Shallow = s.Wants },
		func(s *packsource.Spec) { s.Shallow = p.commits[max(n-20, 1):][:1] },
		func(s *packsource.Spec) { s.Haves, s.Thin = p.commits[max(n-3, 0):][:1], true },
		func(s *packsource.Spec) { s.Haves, s.Thin, s.Offset = p.commits[n/2:][:1], true, false },
		func(s *packsource.Spec) { s.Haves = p.commits[n/2:][:1] },
	} {
		spec := p.clone(n)
		change(&spec)
		list = append(list, spec)
	}
	return list
}

// check reads the bytes of a pack. With thoroughly, git takes it as well.
func (p *pushes) check(source packsource.Source, spec *packsource.Spec, thoroughly bool) {
	p.t.Helper()
	pack := sourcetest.Fetch(p.t, source, spec)
	if thoroughly {
		sourcetest.Check(p.t, p.client, spec, pack)
	}
	content, err := gittest.ReadPack(pack, spec.Repo.Format, func(id git.ObjectID) (git.ObjectType, []byte, error) {
		o := p.client.Read([]string{id.String()})[id]
		return o.Type, o.Data, nil
	})
	if err == nil {
		err = content.CheckDeltas(spec.Offset)
	}
	if err == nil && spec.Offset && len(content.Named) > 0 {
		err = fmt.Errorf("%d deltas name a base in the pack by its ID", len(content.Named))
	}
	if err != nil || p.t.Failed() {
		p.t.Fatalf("%+v: %v", spec, err)
	}
	p.longest, p.checked = max(p.longest, content.Depth), p.checked+1
}

// TestPushes reads the bytes of the packs after each of many thin pushes. Git completes the packs of the pushes with
// copies of the bases, and each clone is composed from the one before.
func TestPushes(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		for _, unpackLimit := range []int{1, 100} { // packs, or loose objects
			n := 200
			if testing.Short() && unpackLimit == 1 {
				n = 38 // with one repack
			} else if testing.Short() {
				n = 20
			}
			if testing.Short() && (format == "sha256") != (unpackLimit > 1) {
				continue
			}
			t.Run(fmt.Sprintf("%s, unpack limit %d", format, unpackLimit), func(t *testing.T) {
				t.Parallel()
				p := newPushes(t, format, n, unpackLimit)
				for i := range p.commits {
					p.push(i)
					spec := p.clone(i)
					p.check(p.composed, &spec, i%50 == 49)
					if i%37 == 36 {
						p.maintain(i / 37)
					}
					if i%19 != 18 {
						continue
					}
					p.check(p.plain, &spec, true)
					for _, other := range p.others(i) {
						p.check(p.plain, &other, false)
						p.check(p.composed, &other, true)
					}
				}
				t.Logf("%d packs, longest chain %d", p.checked, p.longest)
				want := 50
				if testing.Short() { // a chain starts again if a clone comes before the index of the one before
					want = 15
				}
				if unpackLimit == 1 && p.longest < want {
					t.Errorf("the longest chain has %d deltas, want %d: the test tests nothing", p.longest, want)
				}
			})
		}
	}
}

// TestLongChain makes a pack of a repository whose client has pushed a long chain of deltas of a large object. Few
// objects are encoded again, and none of them as a whole.
func TestLongChain(t *testing.T) {
	t.Parallel()
	random := make([]byte, 40_000)
	rand.NewChaCha8([32]byte{}).Read(random)
	text := func(n int) []byte { return fmt.Appendf(random[:len(random):len(random)], "version %d\n", n) }
	r := gittest.Init(t)
	w := gittest.NewPackWriter(git.SHA1)
	var entries strings.Builder
	at := w.Add(git.Blob, text(0))
	const n = 600
	for i := range n {
		if i > 0 {
			at = w.AddOffsetDelta(at, text(i-1), text(i))
		}
		fmt.Fprintf(&entries, "100644 blob %v\t%d\n", gittest.HashObject(git.SHA1, git.Blob, text(i)), i)
	}
	r.GitIn(string(w.Bytes()), "index-pack", "--stdin")
	r.Git("update-ref", "refs/heads/main", r.CommitTree("versions", entries.String()).String())
	spec := sourcetest.Full(r)
	pack, info := sourcetest.FetchWithInfo(t, newSource(t, true), spec)
	sourcetest.Check(t, r, spec, pack)
	if most, size := int64(n/25), 2*len(w.Bytes()); info.Made.Encoded.Objects > most || len(pack) > size {
		t.Errorf("%d objects are encoded in a pack of %d bytes, want at most %d and %d", info.Made.Encoded.Objects,
			len(pack), most, size)
	}
}
