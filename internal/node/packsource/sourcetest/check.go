package sourcetest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// Check fails the test if pack, which has no framing, is not a right answer to the spec. Git is the oracle, in r, which
// is the repository of the spec or a sound copy of it. It checks that:
//   - the pack is well-formed, and has each object once
//   - its deltas are as git makes them, of the kinds that the spec allows, and their bases are in the pack or reached
//     by the haves
//   - git index-pack accepts it in the repository of a client that has what the haves reach, and nothing else
//   - no object that the wants need is missing, and the client's repository is connected
//   - all objects are reached by the wants within the filter, or are tags to add
//
// The deltas of a pack that git has not made name each base in the pack by its offset, if the spec allows that.
func Check(t testing.TB, r *gittest.Repo, spec *packsource.Spec, pack []byte) {
	t.Helper()
	check(t, r, spec, pack, packsource.SourceNative)
}

// FetchAndCheck makes a pack and checks it.
func FetchAndCheck(t testing.TB, s packsource.Source, r *gittest.Repo, spec *packsource.Spec) packsource.Info {
	t.Helper()
	pack, info := FetchWithInfo(t, s, spec)
	check(t, r, spec, pack, info.Made.Source)
	return info
}

// check is Check for a pack of a source of Made.Source.
func check(t testing.TB, r *gittest.Repo, spec *packsource.Spec, pack []byte, source string) {
	t.Helper()
	c := newClient(t, r, spec)
	if err := c.accept(pack); err != nil {
		t.Errorf("the client refuses the pack: %v", err)
		return
	}
	content, err := gittest.ReadPack(pack, spec.Repo.Format, c.base)
	if err != nil {
		t.Errorf("the pack is invalid: %v", err)
		return
	}
	if err := content.CheckDeltas(spec.Offset); err != nil {
		t.Error(err)
	}
	if n := len(content.Named); n > 0 && spec.Offset && source == packsource.SourceNative {
		t.Errorf("%d deltas name a base in the pack by its ID, first %v", n, content.Named[0])
	}
	if len(content.Bases) > 0 && !spec.Thin {
		t.Errorf("the pack is thin: %d bases are outside", len(content.Bases))
	}
	c.checkObjects(content)
	if err := c.connected(); err != nil {
		t.Errorf("the client's repository is not connected: %v", err)
	}
}

// client is a repository that has what the haves of a spec reach.
type client struct {
	*gittest.Repo
	t      testing.TB
	server *gittest.Repo
	spec   *packsource.Spec
	owned  map[string]bool
	grafts string // path of a shallow file with the boundary of the spec

	objects map[git.ObjectID]gittest.Object // those of owned; nil: not read yet
}

func newClient(t testing.TB, server *gittest.Repo, spec *packsource.Spec) *client {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "client.git")
	for _, sub := range []string{"objects/pack", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := &client{t: t, server: server, spec: spec, Repo: gittest.At(t, dir), owned: make(map[string]bool),
		grafts: filepath.Join(dir, "grafts")}
	// Without the last two, git fsck starts a process for each to verify files that a client does not have.
	config := "[core]\n\trepositoryFormatVersion = 1\n\tbare = true\n\tcommitGraph = false\n\tmultiPackIndex = false\n" +
		"[extensions]\n\tobjectFormat = " + spec.Repo.Format.String() + "\n"
	if spec.Filter != "" {
		config += "\tpartialClone = origin\n"
	}
	c.write("config", config)
	c.write("HEAD", "ref: refs/heads/main\n")
	c.write("grafts", lines(spec.Shallow, ""))
	if len(spec.Haves) > 0 {
		haves := c.reach(lines(spec.Haves, ""))
		c.owned = setOf(haves)
		server.GitIn(strings.Join(haves, "\n")+"\n", "pack-objects", "-q", filepath.Join(dir, "objects/pack/pack"))
	}
	if len(spec.Shallow) > 0 {
		c.write("shallow", lines(spec.Shallow, ""))
	}
	return c
}

func (c *client) write(name, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.Dir, name), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// accept takes a pack as `git fetch` does: git leaves links out of the check if there is a filter.
func (c *client) accept(pack []byte) error {
	args := []string{"index-pack", "--stdin", "--strict"}
	if c.spec.Filter != "" {
		args = []string{"index-pack", "--stdin", "--fsck-objects", "--promisor=origin"}
	}
	if c.spec.Thin {
		args = append(args, "--fix-thin")
	}
	_, err := c.TryIn(string(pack), args...)
	return err
}

// base reads an object that the client had before.
func (c *client) base(id git.ObjectID) (git.ObjectType, []byte, error) {
	if c.objects == nil && len(c.owned) > 0 {
		c.objects = c.Read(slices.Collect(maps.Keys(c.owned)))
	}
	o, ok := c.objects[id]
	if !ok {
		return 0, nil, fmt.Errorf("the client does not have %v", id)
	}
	return o.Type, o.Data, nil
}

// reach lists what the revisions reach in the spec's view of the history.
func (c *client) reach(revisions string, more ...string) []string {
	c.t.Helper()
	args := append([]string{"--shallow-file", c.grafts, "rev-list", "--objects", "--no-object-names"}, more...)
	return strings.Fields(c.server.GitIn(revisions, append(args, "--stdin")...))
}

// checkObjects compares the objects of the pack with what git would send.
func (c *client) checkObjects(pack *gittest.Pack) {
	c.t.Helper()
	var filter []string
	if c.spec.Filter != "" {
		filter = []string{"--filter=" + c.spec.Filter}
	}
	wants := lines(c.spec.First, "") + lines(c.spec.Wants, "")
	needed := c.reach(wants+lines(c.spec.Haves, "^"), filter...)
	allowed := setOf(needed)
	if len(c.spec.Haves) > 0 {
		allowed = setOf(c.reach(wants, filter...))
	}
	if len(c.spec.First) > 0 {
		// Git treats a wanted tree differently if a wanted commit has it too: it applies the filter, unless there is a
		// bitmap. Both are right.
		for _, id := range c.reach(lines(c.spec.First, ""), filter...) {
			allowed[id] = true
		}
	}
	sent := setOf(pack.IDs())
	if missing := without(without(needed, sent), c.owned); len(missing) > 0 {
		c.t.Errorf("%d objects are missing: %v", len(missing), first(missing))
	}
	for _, tag := range c.spec.Tags {
		peeled := tag.Peeled.String()
		isSent, isBase := sent[peeled], c.spec.Thin && c.owned[peeled] // git adds tags of possible bases, too
		if !isSent && !isBase {
			continue
		}
		for _, id := range c.chain(tag.ID) {
			allowed[id] = true
			if isSent && !sent[id] && !c.owned[id] {
				c.t.Errorf("tag %s of %v was not added", id, tag.Peeled)
			}
		}
	}
	if extra := without(pack.IDs(), allowed); len(extra) > 0 {
		c.t.Errorf("%d objects that were not requested: %v", len(extra), first(extra))
	}
}

// chain lists a tag and the tags that it names.
func (c *client) chain(tag git.ObjectID) (ids []string) {
	c.t.Helper()
	for id, typ := tag.String(), "tag"; typ == "tag"; {
		ids = append(ids, id)
		text := strings.Fields(c.server.Git("cat-file", "tag", id)) // "object ID type TYPE ..."
		id, typ = text[1], text[3]
	}
	return ids
}

// connected checks that the wants are complete in the client's repository.
func (c *client) connected() error {
	var refs strings.Builder
	refs.WriteString("# pack-refs with: sorted\n")
	for i, id := range c.spec.Wants {
		fmt.Fprintf(&refs, "%v refs/wants/%08d\n", id, i)
	}
	c.write("packed-refs", refs.String())
	_, err := c.Try("fsck", "--connectivity-only", "--no-dangling", "--no-progress")
	return err
}

func lines(list []git.ObjectID, prefix string) string {
	var b strings.Builder
	for _, id := range list {
		b.WriteString(prefix + id.String() + "\n")
	}
	return b.String()
}

func setOf(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}

func without(list []string, set map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return set[s] })
}

// first shortens a list for a message.
func first(list []string) []string { return list[:min(len(list), 5)] }
