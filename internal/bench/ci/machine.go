package ci

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Tool is a program that CI systems use to fetch, with its settings.
type Tool uint8

const (
	// GitLab is GitLab Runner's "fetch" strategy with its default depth of 20 and its default flags, which follow tags:
	//
	//	git fetch origin --no-recurse-submodules +SHA:refs/pipelines/ID \
	//		+refs/heads/BRANCH:refs/remotes/origin/BRANCH --depth 20 --prune --quiet
	//
	// If new tags are within the depth, git fetches them in a second session, which is not modelled.
	GitLab Tool = iota
	// GitLabNoTags is the same with --no-tags (GIT_FETCH_EXTRA_FLAGS).
	GitLabNoTags
	// Checkout is GitHub's checkout action with its defaults:
	//
	//	git fetch --no-tags --prune --no-recurse-submodules --progress --depth=1 origin \
	//		+SHA:refs/remotes/origin/BRANCH
	Checkout
	// CheckoutAll is the same action with fetch-depth: 0:
	//
	//	git fetch --prune --no-recurse-submodules --progress origin +refs/heads/*:refs/remotes/origin/* \
	//		+refs/tags/*:refs/tags/*
	CheckoutAll
	// Jenkins keeps the whole history of one branch:
	//
	//	git fetch --no-tags --force --progress -- URL +refs/heads/BRANCH:refs/remotes/origin/BRANCH
	Jenkins
	// Clone is git clone --quiet of everything.
	Clone
)

// Tools lists all tools.
var Tools = []Tool{GitLab, GitLabNoTags, Checkout, CheckoutAll, Jenkins, Clone}

func (t Tool) String() string {
	return [...]string{"gitlab", "gitlab-no-tags", "checkout", "checkout-all", "jenkins", "clone"}[t]
}

// Keeps reports whether the tool leaves its repository for the machine's next job.
func (t Tool) Keeps() bool { return t == GitLab || t == GitLabNoTags || t == Jenkins }

// depth is the --depth of the tool. 0 is the whole history.
func (t Tool) depth() int {
	switch t {
	case GitLab, GitLabNoTags:
		return 20
	case Checkout:
		return 1
	}
	return 0
}

func (t Tool) quiet() bool      { return t == GitLab || t == GitLabNoTags || t == Clone }
func (t Tool) includeTag() bool { return t == GitLab || t == CheckoutAll }

// Capabilities are the capabilities of a server that change git's requests.
type Capabilities struct {
	Agent       string // the client's agent; empty: the server does not advertise agent
	Format      git.ObjectFormat
	Unborn      bool // ls-refs=unborn
	RefInWant   bool // fetch=ref-in-want
	SidebandAll bool // fetch=sideband-all
}

// Read parses one line of the advertisement (gitprotocol-v2(5), "Capability Advertisement").
func (c *Capabilities) Read(line, agent string) {
	name, value, _ := strings.Cut(line, "=")
	switch name {
	case "agent":
		c.Agent = agent
	case "object-format":
		if f, err := git.ParseObjectFormat(value); err == nil {
			c.Format = f
		}
	case "ls-refs":
		c.Unborn = slices.Contains(strings.Fields(value), "unborn")
	case "fetch":
		c.RefInWant = slices.Contains(strings.Fields(value), "ref-in-want")
		c.SidebandAll = slices.Contains(strings.Fields(value), "sideband-all")
	}
}

// command begins a request. A newline at the end of a line has no meaning, and git writes it for some lines. The model
// writes the same, because caches may hash the bytes.
func (c *Capabilities) command(line string) []byte {
	b := pktline.Append(nil, line)
	if c.Agent != "" {
		b = pktline.Append(b, "agent="+c.Agent)
	}
	b = pktline.Append(b, "object-format="+c.Format.String())
	return pktline.AppendDelim(b)
}

// Job is the task of a machine.
type Job struct {
	Pipeline string // name of the pipeline's ref
	Commit   git.ObjectID
	Branch   string // full name
	First    bool   // the first of its pipeline
}

// Ref is one line of a response to ls-refs.
type Ref struct {
	Name string
	ID   git.ObjectID
}

// Machine is the repository of one CI machine, reduced to the state that determines git's requests: the commits of its
// refs and the boundary of its history. A History has the graph of the commits. Together they determine, byte for byte,
// the requests of git 2.39 in protocol v2 (gitprotocol-v2(5), "ls-refs" and "fetch"), without a repository and without
// a git process. negotiator.go implements its negotiation walk. One detail differs: a second round repeats the common
// commits in the order of a hash table in git.
//
// A Machine and its Fetch belong to one goroutine at a time.
type Machine struct {
	Tool    Tool
	history *History
	refs    map[string]node // remote-tracking and pipeline refs
	tags    map[string]node // the commits of its tags, by the names of the tags
	shallow map[node]bool   // the boundary of its history
}

// NewMachine returns a machine without a repository.
func NewMachine(h *History, tool Tool) *Machine {
	m := &Machine{Tool: tool, history: h}
	m.Reset()
	return m
}

// Reset removes the repository.
func (m *Machine) Reset() {
	m.refs, m.tags, m.shallow = map[string]node{}, map[string]node{}, map[node]bool{}
}

// Fresh reports whether the machine has no repository.
func (m *Machine) Fresh() bool { return len(m.refs) == 0 }

// Leave puts the machine into the state after one job.
func (m *Machine) Leave(job Job) error {
	m.Reset()
	at, err := m.history.find(job.Commit)
	if err != nil || !m.Tool.Keeps() {
		return err
	}
	m.refs[tracking(job.Branch)] = at
	if m.Tool != Jenkins {
		m.refs[job.Pipeline] = at
	}
	if depth := m.Tool.depth(); depth > 0 {
		m.shallow = m.history.boundary(at, depth)
	}
	m.history.follow(m)
	return nil
}

// tracking is the remote-tracking ref of a branch.
func tracking(branch string) string {
	return "refs/remotes/origin/" + strings.TrimPrefix(branch, "refs/heads/")
}

// LsRefs returns the request for the server's refs, or nil if the tool fetches only object IDs and git skips it.
func (m *Machine) LsRefs(c *Capabilities, branch string) []byte {
	var prefixes []string
	switch m.Tool {
	case Checkout:
		return nil
	case CheckoutAll:
		prefixes = []string{"refs/heads/", "refs/tags/", "refs/tags/"}
	case Clone:
		prefixes = []string{"HEAD", "refs/heads/", "refs/tags/"}
	default: // the name may be abbreviated: git requests all possible meanings (gitrevisions(7))
		prefixes = []string{branch, "refs/" + branch, "refs/tags/" + branch, "refs/heads/" + branch, "refs/remotes/" + branch,
			"refs/remotes/" + branch + "/HEAD"}
		if m.Tool == GitLab {
			prefixes = append(prefixes, "refs/tags/")
		}
	}
	b := c.command("command=ls-refs\n")
	b = pktline.AppendLine(b, "peel")
	b = pktline.AppendLine(b, "symrefs")
	if c.Unborn {
		b = pktline.AppendLine(b, "unborn")
	}
	for _, p := range prefixes {
		b = pktline.AppendLine(b, "ref-prefix "+p)
	}
	return pktline.AppendFlush(b)
}

// Needs reports whether Fetch needs all refs of the response to LsRefs, or only the branch.
func (m *Machine) Needs() (all bool) { return m.Tool == CheckoutAll || m.Tool == Clone }

// want is one thing that a request wants.
type want struct {
	id  git.ObjectID
	ref string // empty: wanted by its ID
}

// wants returns git's wants in its order: the server's refs, then the IDs of the command line. It is empty if the
// machine is up to date.
func (m *Machine) wants(job Job, refs []Ref) ([]want, error) {
	if m.Tool == Checkout {
		return []want{{id: job.Commit}}, nil
	}
	if m.Needs() {
		list := make([]want, 0, len(refs))
		for _, r := range refs {
			list = append(list, want{r.ID, r.Name})
		}
		return list, nil
	}
	i := slices.IndexFunc(refs, func(r Ref) bool { return r.Name == job.Branch })
	if i < 0 {
		return nil, fmt.Errorf("the server shows no %s", job.Branch)
	}
	branch := want{refs[i].ID, job.Branch}
	if m.Tool == Jenkins {
		if m.at(tracking(job.Branch), branch.id) {
			return nil, nil
		}
		return []want{branch}, nil
	}
	var list []want
	if !m.at(tracking(job.Branch), branch.id) {
		list = append(list, branch)
	}
	if m.Tool == GitLab { // a tag of a wanted commit becomes a separate ref
		list = append(list, m.history.tagsAt(m, branch.id, job.Commit)...)
	}
	if !m.at(job.Pipeline, job.Commit) {
		list = append(list, want{id: job.Commit})
	}
	if len(list) == 0 { // with --depth git sends the request even so, and then for all refs
		list = []want{branch, {id: job.Commit}}
	}
	return list, nil
}

// at reports whether a ref of the machine is at a commit.
func (m *Machine) at(ref string, id git.ObjectID) bool {
	at, ok := m.refs[ref]
	return ok && m.history.id(at) == id
}

// Fetch is one fetch of a machine: requests in rounds, until a response has a pack.
type Fetch struct {
	m          *Machine
	caps       *Capabilities
	job        Job
	wants      []want
	negotiator *negotiator
	batch      int // number of haves of the next round

	common    []git.ObjectID
	boundary  []git.ObjectID // shallow lines of the response
	unshallow []git.ObjectID
	resolved  []Ref // wanted-refs lines
}

// initialHaves is the number of haves of the first round. Each further round over HTTP doubles it.
const initialHaves = 16

// Fetch starts a fetch, or returns nil if the machine is up to date. refs are the needed ones of LsRefs' response.
func (m *Machine) Fetch(job Job, refs []Ref, c *Capabilities) (*Fetch, error) {
	wants, err := m.wants(job, refs)
	if err != nil || len(wants) == 0 {
		return nil, err
	}
	return &Fetch{m: m, caps: c, job: job, wants: wants, negotiator: m.history.negotiate(m), batch: initialHaves}, nil
}

// Request is the body of the next round.
func (f *Fetch) Request() []byte {
	t := f.m.Tool
	b := f.caps.command("command=fetch")
	b = pktline.Append(b, "thin-pack")
	if t.quiet() {
		b = pktline.Append(b, "no-progress")
	}
	if t.includeTag() {
		b = pktline.Append(b, "include-tag")
	}
	b = pktline.Append(b, "ofs-delta")
	if f.caps.SidebandAll {
		b = pktline.Append(b, "sideband-all")
	}
	for _, id := range f.m.Shallow() {
		b = pktline.Append(b, "shallow "+id.String())
	}
	if depth := t.depth(); depth > 0 {
		b = pktline.Append(b, fmt.Sprint("deepen ", depth))
	}
	for _, w := range f.wants {
		if w.ref != "" && f.caps.RefInWant {
			b = pktline.AppendLine(b, "want-ref "+w.ref)
		} else {
			b = pktline.AppendLine(b, "want "+w.id.String())
		}
	}
	for _, id := range f.common {
		b = pktline.AppendLine(b, "have "+id.String())
	}
	haves := f.negotiator.next(f.batch)
	f.batch *= 2
	for _, id := range haves {
		b = pktline.AppendLine(b, "have "+id.String())
	}
	if len(haves) == 0 {
		b = pktline.AppendLine(b, "done")
	}
	f.boundary, f.unshallow, f.resolved = nil, nil, nil
	return pktline.AppendFlush(b)
}

// Line parses a line of the response before its pack, without its line end and its band.
func (f *Fetch) Line(line []byte) error {
	word, rest, _ := bytes.Cut(line, []byte(" "))
	var to *[]git.ObjectID
	switch string(word) {
	case "ACK":
		to = &f.common
	case "shallow":
		to = &f.boundary
	case "unshallow":
		to = &f.unshallow
	default:
		if len(rest) > 0 { // a line of wanted-refs
			id, err := git.ParseObjectID(word)
			if err != nil {
				return err
			}
			f.resolved = append(f.resolved, Ref{string(rest), id})
		}
		return nil
	}
	id, err := git.ParseObjectID(rest)
	if err != nil {
		return err
	}
	if to == &f.common {
		if slices.Contains(f.common, id) { // repeated in a later round
			return nil
		}
		f.negotiator.acknowledged(id)
	}
	*to = append(*to, id)
	return nil
}

// Shallow returns the boundary of the machine's history after the fetch, sorted.
func (f *Fetch) Shallow() []git.ObjectID {
	list := slices.Concat(f.m.Shallow(), f.boundary)
	list = slices.DeleteFunc(list, func(id git.ObjectID) bool { return slices.Contains(f.unshallow, id) })
	slices.SortFunc(list, git.ObjectID.Compare)
	return slices.Compact(list)
}

// Wants returns the wanted objects, sorted. want-ref lines are resolved as by the server.
func (f *Fetch) Wants() []git.ObjectID {
	names := map[string]git.ObjectID{}
	for _, r := range f.resolved {
		names[r.Name] = r.ID
	}
	ids := make([]git.ObjectID, 0, len(f.wants))
	for _, w := range f.wants {
		id := w.id
		if at, ok := names[w.ref]; ok {
			id = at
		}
		ids = append(ids, id)
	}
	slices.SortFunc(ids, git.ObjectID.Compare)
	return slices.Compact(ids)
}

// Finish updates the machine after the pack. If the history does not contain a wanted commit, because another client
// has pushed, the machine has no repository for its next job.
func (f *Fetch) Finish() {
	m := f.m
	if !m.Tool.Keeps() {
		m.Reset()
		return
	}
	ok := true
	at := func(id git.ObjectID) node {
		n, err := m.history.find(id)
		ok = ok && err == nil
		return n
	}
	for _, id := range f.unshallow {
		delete(m.shallow, at(id))
	}
	for _, id := range f.boundary {
		m.shallow[at(id)] = true
	}
	m.refs[tracking(f.job.Branch)] = at(f.branch())
	if m.Tool != Jenkins {
		m.refs[f.job.Pipeline] = at(f.job.Commit)
	}
	if !ok {
		m.Reset()
	}
	m.history.follow(m)
}

// branch returns the value of the branch in the response.
func (f *Fetch) branch() git.ObjectID {
	for _, r := range f.resolved {
		if r.Name == f.job.Branch {
			return r.ID
		}
	}
	for _, w := range f.wants {
		if w.ref == f.job.Branch {
			return w.id
		}
	}
	return f.m.history.id(f.m.refs[tracking(f.job.Branch)]) // the machine is up to date
}

// Refs returns the machine's refs without its tags, sorted by name.
func (m *Machine) Refs() []Ref {
	list := make([]Ref, 0, len(m.refs))
	for name, at := range m.refs {
		list = append(list, Ref{name, m.history.id(at)})
	}
	slices.SortFunc(list, func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Shallow returns the boundary of the machine's history, sorted.
func (m *Machine) Shallow() []git.ObjectID {
	list := make([]git.ObjectID, 0, len(m.shallow))
	for at := range m.shallow {
		list = append(list, m.history.id(at))
	}
	slices.SortFunc(list, git.ObjectID.Compare)
	return list
}
