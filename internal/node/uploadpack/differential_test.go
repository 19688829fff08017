package uploadpack

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// TestDifferential asks us and `git upload-pack` the same at random, with every source of packs and in every version of
// the protocol, and compares the answers. PACKHORSE_SESSIONS is how many sessions to try, about, and PACKHORSE_SEED the
// first repository's seed. A session may be more than one request.
func TestDifferential(t *testing.T) {
	t.Parallel()
	repositories, first := 10, uint64(1)
	if testing.Short() {
		repositories = 1
	}
	if n, err := strconv.Atoi(os.Getenv("PACKHORSE_SESSIONS")); err == nil {
		repositories = (n + sessions - 1) / sessions
	}
	if n, err := strconv.ParseUint(os.Getenv("PACKHORSE_SEED"), 10, 64); err == nil {
		first = n
	}
	stranger := gittest.Init(t)
	id := stranger.Commit("stranger 0")
	for i := range 5 {
		id = stranger.Commit(fmt.Sprintf("stranger %d", i+1), id)
	}
	stranger.Git("update-ref", "refs/heads/main", id.String())
	for i := range repositories {
		seed := first + uint64(i)
		for _, source := range sources {
			t.Run(fmt.Sprintf("source=%s/seed=%d", source.name, seed), func(t *testing.T) {
				t.Parallel()
				differential(t, seed, stranger.Dir, source.make)
			})
		}
	}
}

// sessions is how many each repository gets.
const sessions = 210

func differential(t *testing.T, seed uint64, stranger string, newSource func(t testing.TB) packsource.Source) {
	s := newTestServer(t, seed, layouts[seed%uint64(len(layouts))])
	rnd := rand.New(rand.NewPCG(seed, 2))
	clients := newTestClients(t, s, rnd, stranger)
	plain := New(newSource(t), Options{Agent: "packhorse/test", Wants: WantsAny})
	keeping := New(cached(t, newSource(t)), Options{Agent: "packhorse/test", Wants: WantsAny})
	failed := 0
	for i := range sessions {
		server, again := plain, chance(rnd, 15)
		if again {
			server = keeping
		}
		var q *testRequest
		var err error
		talk, client := "", ""
		switch p := rnd.IntN(100); {
		case p < 8:
			q = randomLsRefs(rnd, s)
			err = s.compare(t, server, q, again, false)
		case p < 45:
			q = randomFetch(rnd, s, pick(rnd, clients), version2Only)
			err = s.compare(t, server, q, again, rnd.IntN(5) == 0)
		default:
			q = randomFetch(rnd, s, pick(rnd, clients), nil)
			d := randomDialect(rnd)
			talk = d.String()
			err = s.compareV0(t, server, q, d, rnd, again)
		}
		if err != nil {
			if q.client != nil {
				client = q.client.name + " client " + talk
			}
			t.Errorf("session %d, %s, %s: %v\n%s%v\nagain: make soak-protocol SESSIONS=1 SEED=%d", i, s.layout,
				s.format, err, client, q, seed)
			if failed++; failed == 3 {
				return
			}
		}
	}
}

// compare asks both. With again we are asked twice, so that the second answer comes from the cache. With thorough the
// client takes the pack in any case.
func (s *testServer) compare(t *testing.T, server *Server, q *testRequest, again, thorough bool) error {
	request := q.bytes(s.format)
	want, oracleFailed, stderr := s.oracle(t, request)
	response, outcome, err := s.serve(server, request)
	if again && err == nil {
		response, outcome, err = s.serve(server, request)
		if err == nil && outcome.Fetch.Pack != "" && outcome.Fetch.Pack != "hit" && outcome.Fetch.Pack != "follow" {
			return fmt.Errorf("asked again, the pack was a %s", outcome.Fetch.Pack)
		}
	}
	got := response.Bytes()
	if oracleFailed && err == nil && s.cutsOff(q) {
		return nil // see compareFetch
	}
	if oracleFailed != (err != nil) {
		return fmt.Errorf("git failed: %v; we: %v\n%s%.300q", oracleFailed, err, stderr, want)
	}
	if err != nil {
		return nil
	}
	if q.command == "ls-refs" {
		if string(got) != string(want) {
			return fmt.Errorf("we say\n%q\ngit says\n%q", got, want)
		}
		return nil
	}
	sideband := q.has("sideband-all")
	theirs, err := parseAnswer(want, sideband)
	if err != nil {
		return fmt.Errorf("git's answer: %w", err)
	}
	ours, err := parseAnswer(got, sideband)
	if err != nil {
		return fmt.Errorf("our answer: %w", err)
	}
	if !slices.IsSortedFunc(ours.sections, func(a, b string) int {
		return slices.Index(sectionOrder, a) - slices.Index(sectionOrder, b)
	}) {
		return fmt.Errorf("our sections are %q", ours.sections)
	}
	return s.compareFetch(t, q, ours, theirs, thorough)
}

// sectionOrder is the order of sections in gitprotocol-v2(5), which git's client insists on. Git's server sends
// wanted-refs before shallow-info (seen up to 2.39), so that its own client cannot make a shallow clone by want-ref of
// it; from us it can.
var sectionOrder = []string{"acknowledgments", "shallow-info", "wanted-refs", "packfile"}

// cutsOff reports whether history ends elsewhere in our answer than in that of the installed git.
func (s *testServer) cutsOff(q *testRequest) bool { return q.beyond || s.shallow && q.unlike }

func (s *testServer) compareFetch(t *testing.T, q *testRequest, ours, theirs *answer, thorough bool) error {
	// With deepen-since, deepen-not and deepen-relative, git does not report the end of its own history. Its clients
	// then have a broken history, or pack-objects dies. We report the end, so the answers differ, and we check the
	// result in the client.
	cutOff := s.cutsOff(q)
	for _, section := range sectionOrder {
		if a, b := slices.Contains(ours.sections, section), slices.Contains(theirs.sections, section); a != b {
			return fmt.Errorf("section %s: we %v, git %v", section, a, b)
		}
		a, b := ours.lines[section], theirs.lines[section]
		slices.Sort(a)
		slices.Sort(b)
		if section != "wanted-refs" {
			b = slices.Compact(b) // git acknowledges a commit as often as it is named, and may tell a boundary twice
		}
		if section == "shallow-info" && cutOff {
			b = a
		}
		if !slices.Equal(a, b) {
			return fmt.Errorf("section %s: we say\n%q\ngit says\n%q", section, a, b)
		}
	}
	if cutOff && slices.Contains(ours.sections, "packfile") {
		return q.client.accept(t, ours, q.wants(ours), !q.filter)
	}
	if q.has("no-progress") && ours.progress != "" {
		return fmt.Errorf("we tell of progress: %q", ours.progress)
	}
	if !slices.Contains(ours.sections, "packfile") {
		return nil
	}
	return s.comparePacks(t, q, ours, theirs, thorough)
}

func (s *testServer) comparePacks(t *testing.T, q *testRequest, ours, theirs *answer, thorough bool) error {
	their, err := gittest.ReadPack(theirs.pack, s.format, s.readObject)
	if err != nil {
		return fmt.Errorf("git's pack: %w", err)
	}
	our, err := gittest.ReadPack(ours.pack, s.format, s.readObject)
	if err != nil {
		return fmt.Errorf("our pack: %w", err)
	}
	if err := their.CheckDeltas(q.has("ofs-delta")); err != nil {
		return fmt.Errorf("git's pack: %w", err)
	}
	if err := our.CheckDeltas(q.has("ofs-delta")); err != nil {
		return fmt.Errorf("our pack: %w", err)
	}
	if n := len(our.Named); n > 0 && len(their.Named) == 0 && q.has("ofs-delta") {
		return fmt.Errorf("%d deltas of our pack name a base in it by its ID, first %v", n, our.Named[0])
	}
	for base := range our.Bases {
		if !q.has("thin-pack") || !q.client.objects[base.String()] {
			return fmt.Errorf("our pack has a delta against %s, which the client does not have", base)
		}
	}
	equal := true
	for _, id := range our.IDs() {
		if _, both := their.Objects[git.MustParseObjectID(id)]; both {
			continue
		}
		equal = false
		// The haves are reduced to the maximal ones. Git passes all of them to pack-objects, which leaves out the trees
		// of these and of the commits at the edge, but not of all commits. Therefore either pack may have more objects
		// that the client already has.
		if (!q.haves || !q.client.objects[id]) && !(q.filter && s.isInWantedTree(q.wants(ours), id)) {
			return fmt.Errorf("our pack has %s (%v) and git's has not\nwe  %d objects\ngit %d objects", id,
				our.Objects[git.MustParseObjectID(id)], len(our.Objects), len(their.Objects))
		}
	}
	for _, id := range their.IDs() {
		if _, both := our.Objects[git.MustParseObjectID(id)]; both {
			continue
		}
		equal = false
		if (q.haves || unshallows(ours)) && q.client.objects[id] {
			continue
		}
		// Git adds a tag also if what it names is no more than a possible delta base, which the client has.
		if peeled := s.Git("rev-parse", id+"^{}"); q.has("include-tag") && q.has("thin-pack") &&
			q.client.objects[peeled] {
			continue
		}
		return fmt.Errorf("git's pack has %s (%v) and ours has not", id, their.Objects[git.MustParseObjectID(id)])
	}
	if equal && !thorough {
		return nil
	}
	return q.client.accept(t, ours, q.wants(ours), !q.filter)
}

// unshallows reports whether the client has commits whose parents it gets now. They are haves.
func unshallows(a *answer) bool {
	return slices.ContainsFunc(a.lines["shallow-info"],
		func(line string) bool { return strings.HasPrefix(line, "unshallow ") })
}

// isInWantedTree reports whether a wanted tree contains an object, or is it. Git applies the filter to such a tree if a
// wanted commit has it too, and there is no bitmap. The native source treats all wanted trees alike.
func (s *testServer) isInWantedTree(wants []string, id string) bool {
	for _, want := range wants {
		tree := s.Git("rev-parse", want+"^{}")
		if s.Git("cat-file", "-t", tree) == "tree" &&
			slices.Contains(strings.Fields(s.Git("rev-list", "--objects", "--no-object-names", tree)), id) {
			return true
		}
	}
	return false
}

func (s *testServer) readObject(id git.ObjectID) (git.ObjectType, []byte, error) {
	return s.repo.Objects.Read(id, 0)
}
