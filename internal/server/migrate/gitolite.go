package migrate

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
)

// gitolite is the configuration of gitolite 3 (https://gitolite.com/gitolite/conf.html).
//
// Its rules are in order, and the first that permits a change or denies it decides. So a rule adds permissions to those
// of the rules before it. In Packhorse the first rule that matches a ref decides. Patterns of refs are beginnings of
// names, or whole names. So of two patterns one is part of the other, or they have no ref in common. Gitolite has
// therefore one result for all refs whose most specific pattern is the same. There is a rule for each such result, the
// most specific pattern first.
type gitolite struct {
	*Result
	groups map[string][]string
	blocks []*block
}

// block is a line "repo" with its rules.
type block struct {
	at     line
	repos  []string
	rules  []aclRule
	denies bool // option deny-rules
}

type aclRule struct {
	at    line
	perm  string // "-", "R", "RW", "RW+", "RWCD", ...
	refs  []refex
	who   []string        // users and groups
	users map[string]bool // without groups; "@all" is one
}

// refex is a pattern of refs: a beginning of names, or a whole name.
type refex struct {
	text  string
	whole bool
}

// covers reports whether all refs of other are refs of r.
func (r refex) covers(other refex) bool {
	return r == other || !r.whole && strings.HasPrefix(other.text, r.text)
}

// patterns returns the pattern as Packhorse writes it.
func (r refex) patterns() []string {
	switch {
	case r.whole:
		return []string{r.text}
	case strings.HasSuffix(r.text, "/"):
		return []string{r.text + "**"}
	}
	return []string{r.text + "*", r.text + "*/**"}
}

// Gitolite reads gitolite.conf, or the directory of a gitolite-admin repository.
func Gitolite(path string) (*Result, error) {
	g := &gitolite{Result: newResult(), groups: map[string][]string{}}
	dir := path
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "conf/gitolite.conf")
	} else {
		dir = filepath.Dir(filepath.Dir(path))
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("%w: name conf/gitolite.conf, or a clone of gitolite-admin, which has it", err)
	}
	if err := g.file(path); err != nil {
		return nil, err
	}
	if err := g.keys(filepath.Join(dir, "keydir")); err != nil {
		return nil, err
	}
	g.convert()
	return g.check()
}

var (
	comment   = regexp.MustCompile(`^((?:".*?"|[^#"])*)#.*`)
	ruleLine  = regexp.MustCompile(`^(-|C|R|RW\+?(?:C?D?|D?C?)M?) (.* )?= (.+)`)
	groupLine = regexp.MustCompile(`^@(\S+) = (.*)`)
	setting   = regexp.MustCompile(`^(?:config gitweb\.)?(description|desc|owner) = "?(.*?)"?$`)
	include   = regexp.MustCompile(`^(include|subconf) (?:\S+ )?["'](.+)["']$`)
	literal   = regexp.MustCompile(`^[A-Za-z0-9_/@+.,-]*$`)
	spaces    = regexp.MustCompile(`\s+`)
)

// file reads a file.
func (g *gitolite) file(path string) error {
	lines, err := g.lines(path)
	for _, l := range lines {
		l.text = comment.ReplaceAllString(l.text, "$1")
		l.text = strings.TrimSpace(spaces.ReplaceAllString(strings.Replace(l.text, "=", " = ", 1), " "))
		if m := include.FindStringSubmatch(l.text); m != nil {
			if m[1] == "subconf" {
				g.note(l, "subconf is read as include: limits of what its files may change have no equivalent")
			}
			found, _ := filepath.Glob(filepath.Join(filepath.Dir(path), m[2]))
			if len(found) == 0 {
				g.note(l, "no such file: %s", m[2])
			}
			for _, f := range found {
				if filepath.Ext(f) != ".conf" {
					g.note(l, "%s is left out: its name does not end in .conf", f)
				} else if err := g.file(f); err != nil {
					return err
				}
			}
		} else if l.text != "" {
			g.line(l)
		}
	}
	return err
}

// line reads one line.
func (g *gitolite) line(l line) {
	var in *block
	if len(g.blocks) > 0 {
		in = g.blocks[len(g.blocks)-1]
	}
	name, isRepo := strings.CutPrefix(l.text, "repo ")
	if m := groupLine.FindStringSubmatch(l.text); m != nil {
		g.groups[m[1]] = append(g.groups[m[1]], strings.Fields(m[2])...)
	} else if isRepo {
		g.blocks = append(g.blocks, &block{at: l, repos: strings.Fields(name)})
	} else if in == nil {
		g.note(l, noEquivalent)
	} else if m := ruleLine.FindStringSubmatch(l.text); m != nil {
		g.rule(l, in, m[1], strings.Fields(m[2]), strings.Fields(m[3]))
	} else if l.text == "option deny-rules = 1" {
		in.denies = true
	} else if m := setting.FindStringSubmatch(l.text); m != nil {
		for _, path := range g.expand(in.repos) {
			if literal.MatchString(path) && m[1] == "owner" {
				g.repository(path).Owner = m[2]
			} else if literal.MatchString(path) {
				g.repository(path).Description = m[2]
			}
		}
	} else {
		g.note(l, noEquivalent)
	}
}

func (g *gitolite) rule(l line, in *block, perm string, refs, who []string) {
	if perm == "C" {
		g.note(l, `pushes create repositories by [push] create = ["users/{name}/**"] (docs/how-to/repositories.md)`)
		return
	}
	if strings.Contains(perm, "M") {
		g.note(l, "M is ignored: merges are changes like others")
	}
	r := aclRule{at: l, perm: perm}
	for _, user := range who {
		if user == "gitweb" {
			g.note(l, "gitweb is ignored: the pages of Packhorse show what a visitor may read")
		} else if err := auth.CheckName(strings.TrimPrefix(user, "@")); err != nil || user == "CREATOR" ||
			user == "READERS" || user == "WRITERS" || user == "OWNERS" || user == "@CREATOR" {
			g.note(l, "%s is ignored: it is a role, or not a name", user)
		} else {
			r.who = append(r.who, user)
		}
	}
	if len(refs) == 0 {
		refs = []string{"refs/.*"}
	}
	g.noteUndefined(l, refs)
	for _, text := range g.expand(refs) {
		pattern, ok := parseRefex(text)
		switch {
		case ok:
			r.refs = append(r.refs, pattern)
		case perm == "-":
			g.note(l, "%q has no equivalent: these callers are denied all refs that a rule before does not permit", text)
			r.refs = append(r.refs, refex{text: "refs/"})
		default:
			g.note(l, "%q has no equivalent: the rule is left out for these refs", text)
		}
	}
	in.rules = append(in.rules, r)
}

// parseRefex converts a regular expression of gitolite, which matches the beginning of a ref. A dot is taken as itself.
func parseRefex(text string) (r refex, ok bool) {
	if strings.HasPrefix(text, "VREF/") {
		return r, false
	}
	if !strings.HasPrefix(text, "refs/") {
		text = "refs/heads/" + text
	}
	text, r.whole = strings.CutSuffix(text, "$")
	if !r.whole {
		text = strings.TrimSuffix(text, ".*")
	}
	text = strings.ReplaceAll(text, `\.`, ".")
	r.text = strings.Replace(text, "/USER/", "/{name}/", 1)
	return r, literal.MatchString(text)
}

// expand replaces groups by their members.
func (g *gitolite) expand(names []string) (all []string) {
	all, _ = g.membersOf(names)
	return all
}

// noteUndefined notes groups that no line defines. They have no members here.
func (g *gitolite) noteUndefined(l line, names []string) {
	_, undefined := g.membersOf(names)
	for _, name := range undefined {
		g.note(l, "@%s is ignored: no line defines this group. If a program names its members (GROUPLIST_PGM), list them in "+
			"a line @%s = ... and import again", name, name)
	}
}

// membersOf replaces groups by their members. It also returns the groups that no line defines.
func (g *gitolite) membersOf(names []string) (all, undefined []string) {
	names, seen := slices.Clone(names), map[string]bool{}
	for i := 0; i < len(names); i++ {
		if name := names[i]; !seen[name] {
			seen[name] = true
			if group, ok := strings.CutPrefix(name, "@"); !ok || group == "all" {
				all = append(all, name)
			} else if members, ok := g.groups[group]; ok {
				names = append(names, members...)
			} else {
				undefined = append(undefined, group)
			}
		}
	}
	return all, undefined
}

// keys reads the files USER.pub and USER@PLACE.pub.
func (g *gitolite) keys(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, ok := strings.CutSuffix(filepath.Base(path), ".pub")
		if os.IsNotExist(err) && path == dir {
			return nil
		}
		if err != nil || !ok || e.IsDir() {
			return err
		}
		if user, place, ok := strings.Cut(name, "@"); ok && !strings.Contains(place, ".") {
			name = user
		}
		text, err := os.ReadFile(path)
		if err == nil {
			if err := auth.CheckName(name); err != nil {
				g.note(line{file: path}, "the key is left out: %v", err)
			} else {
				g.Keys[name] += strings.TrimSpace(string(text)) + "\n"
			}
		}
		return err
	})
}

// target is a set of repositories: one, those below a directory, or all.
type target struct {
	text  string // a path, a path that ends in a slash, or ""
	whole bool
}

var wild = regexp.MustCompile(`^([A-Za-z0-9_/@+.-]*/)?(?:\.\*|\.\.\*|\.\+)$`)

// targets returns the sets of repositories in the blocks, the most specific ones first, and notes those without an
// equivalent.
func (g *gitolite) targets() []target {
	all := map[target]bool{}
	for _, b := range g.blocks {
		g.noteUndefined(b.at, b.repos)
		for _, r := range b.rules {
			g.noteUndefined(r.at, r.who)
		}
		for _, name := range g.expand(b.repos) {
			m, hasRole := wild.FindStringSubmatch(name), strings.Contains(name, "CREATOR")
			switch {
			case name == "@all":
				all[target{}] = true
			case m != nil && !hasRole:
				all[target{text: m[1]}] = true
			case literal.MatchString(name) && !hasRole:
				all[target{name, true}] = true
				g.repository(name)
			default:
				g.note(b.at, "repositories %q have no equivalent: use patterns such as users/{name}/** in rules and in "+
					"[push] create", name)
			}
		}
	}
	length := func(t target) int {
		if t.whole {
			return math.MaxInt
		}
		return len(t.text)
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b target) int {
		return cmp.Or(cmp.Compare(length(b), length(a)), strings.Compare(a.text, b.text))
	})
}

// convert makes rules of the blocks. Repositories with the same blocks are one class.
func (g *gitolite) convert() {
	known := map[string]*class{} // by the blocks
	var classes []*class
	for _, t := range g.targets() {
		c, key, isBounded := &class{gitolite: g}, "", false
		for i, b := range g.blocks {
			names := slices.DeleteFunc(g.expand(b.repos), func(name string) bool { return !g.matches(name, t) })
			if len(names) > 0 {
				key += fmt.Sprint(i, " ")
				isBounded = isBounded || slices.ContainsFunc(names, func(name string) bool { return name != t.text })
				c.rules, c.denies = append(c.rules, b.rules...), c.denies || b.denies
			}
		}
		pattern := t.text
		if !t.whole {
			key, pattern = "", pattern+"**"
		}
		if same := known[key]; same != nil && t.whole {
			c = same
		} else {
			known[key], classes = c, append(classes, c)
		}
		c.repos, c.isBounded = append(c.repos, pattern), c.isBounded || isBounded
	}
	used := map[string]bool{}
	for _, c := range classes {
		c.convert(used)
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		g.Groups = append(g.Groups, auth.GroupSpec{Name: name, Members: g.members(name)})
	}
}

// matches reports whether the rules of a name in a line "repo" are for all repositories of a target.
func (g *gitolite) matches(name string, t target) bool {
	if name == "@all" || name == t.text && t.whole {
		return true
	}
	if m := wild.FindStringSubmatch(name); m != nil {
		return strings.HasPrefix(t.text, m[1]) && (t.text != "" || m[1] == "")
	}
	if literal.MatchString(name) || !t.whole {
		return false
	}
	expression, err := regexp.Compile("^(?:" + name + ")$")
	return err == nil && expression.MatchString(t.text)
}

// members returns the users of a group.
func (g *gitolite) members(group string) []string {
	list := g.expand([]string{"@" + group})
	slices.Sort(list)
	return slices.Compact(list)
}

// class is a set of repositories with the same rules.
type class struct {
	*gitolite
	repos     []string // patterns
	rules     []aclRule
	isBounded bool     // broader rules match its repositories, too
	groups    []string // in the rules, the largest first
	denies    bool     // rules with "-" deny reading, too

	// letters of the permissions for the changes of mayOf. Without rules with C, W creates. Without D, + deletes.
	letters [4]string
}

// anyone stands for a caller that no rule names.
const anyone = "*"

// has reports whether a rule is for a user.
func (c *class) has(r aclRule, user string) bool {
	return r.users[user] || r.users["@all"] && user != "daemon"
}

// result returns the changes of refs that a user may make, as bits for mayOf.
func (c *class) result(user string, of refex) (ops int) {
	if !c.may(user, "W") {
		return 0
	}
	for _, r := range c.rules {
		if !c.has(r, user) || !slices.ContainsFunc(r.refs, func(p refex) bool { return p.covers(of) }) {
			continue
		}
		if r.perm == "-" {
			return ops
		}
		for i, letter := range c.letters {
			if strings.Contains(r.perm, letter) {
				ops |= 1 << i
			}
		}
	}
	return ops
}

// may reports whether a user may read ("R") or begin to push ("W"), before gitolite knows refs.
func (c *class) may(user, letter string) bool {
	for _, r := range c.rules {
		isDenied := c.denies && r.perm == "-"
		if c.has(r, user) && (isDenied || strings.Contains(r.perm, letter)) {
			return !isDenied
		}
	}
	return false
}

// readers returns the users that may read, and those that may not although anyone may.
func (c *class) readers(users []string) map[bool][]string {
	lists := map[bool][]string{}
	for _, user := range users {
		reads := c.may(user, "R")
		if user == "daemon" {
			user = "anonymous"
		}
		if user == "anonymous" && reads || user == anyone && reads || reads != c.may(anyone, "R") {
			lists[reads] = append(lists[reads], user)
		}
	}
	return lists
}

// analyze finds the users in the rules, and the patterns of the refs that some rule permits or denies to change, the
// most specific ones first.
func (c *class) analyze() (users map[string]bool, order []refex) {
	users = map[string]bool{}
	refs, groups := map[refex]bool{}, map[string]bool{}
	c.letters = [4]string{"W", "W", "+", "+"}
	for i := range c.rules {
		r := &c.rules[i]
		r.users = map[string]bool{}
		for _, user := range c.expand(r.who) {
			r.users[user], users[user] = true, true
		}
		if strings.HasPrefix(r.perm, "RW") && strings.Contains(r.perm, "C") {
			c.letters[0] = "C"
		}
		if strings.Contains(r.perm, "D") {
			c.letters[3] = "D"
		}
		if strings.Contains(r.perm, "W") || r.perm == "-" {
			for _, p := range r.refs {
				refs[p] = true
			}
		}
		for _, name := range r.who {
			if group, ok := strings.CutPrefix(name, "@"); ok && group != "all" {
				groups[group] = true
			}
		}
	}
	delete(users, "@all")
	c.groups = slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(len(c.members(b))-len(c.members(a)), strings.Compare(a, b))
	})
	return users, slices.SortedFunc(maps.Keys(refs), func(a, b refex) int {
		return cmp.Or(len(b.text)-len(a.text), strings.Compare(fmt.Sprint(b.whole, a.text), fmt.Sprint(a.whole, b.text)))
	})
}

// convert adds the rules of the class. used gets their groups.
func (c *class) convert(used map[string]bool) {
	users, order := c.analyze()
	readers := c.readers(append(slices.Sorted(maps.Keys(users)), anyone))
	delete(users, "daemon")
	add := func(who []string, refs []string, may string) {
		if len(who) > 0 {
			who = c.withGroups(who, used)
			c.Rules = append(c.Rules, auth.RuleSpec{Who: who, Repositories: c.repos, Refs: refs, May: may})
		}
	}
	for i, p := range order {
		byOps := map[int][]string{}
		other := c.result(anyone, p)
		isBroader := func(user string) bool {
			return slices.ContainsFunc(order[i+1:], func(q refex) bool { return q.covers(p) && c.result(user, q) != 0 })
		}
		for _, user := range slices.Sorted(maps.Keys(users)) {
			if ops := c.result(user, p); ops != other || isBroader(user) {
				byOps[ops] = append(byOps[ops], user)
			}
		}
		for _, ops := range slices.Sorted(maps.Keys(byOps)) {
			if ops != other || other == 0 {
				add(byOps[ops], p.patterns(), mayOf(ops))
			}
		}
		if other != 0 || isBroader(anyone) {
			add([]string{anyone}, p.patterns(), mayOf(other))
		}
	}
	add(readers[false], nil, "none")
	add(readers[true], nil, "read")
	if c.isBounded {
		add([]string{anyone, "anonymous"}, nil, "none")
	}
}

// withGroups replaces users by the groups that have only these.
func (c *class) withGroups(users []string, used map[string]bool) (who []string) {
	left := slices.Clone(users)
	for _, name := range c.groups {
		members := c.members(name)
		others := slices.DeleteFunc(slices.Clone(left), func(u string) bool { return slices.Contains(members, u) })
		isOther := func(user string) bool { return !slices.Contains(users, user) }
		if len(others) < len(left) && !slices.ContainsFunc(members, isOther) {
			who, left, used[name] = append(who, "group:"+name), others, true
		}
	}
	return append(who, left...)
}

// mayOf returns permitted changes as a rule has them.
func mayOf(ops int) string {
	var words []string
	for i, word := range []string{"create", "write", "force", "delete"} {
		if ops&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}
