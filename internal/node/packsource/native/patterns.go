package native

import (
	"cmp"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/sparse"
)

// patternWalk walks trees for a filter of the kind sparse:oid. All trees pass, and blobs that the patterns include at
// one of their paths. Git walks a tree once for each of its paths. Here paths count as one directory if the patterns
// decide the same about everything below them: a few trees can have millions of paths. Memory is needed for each tree,
// directory and file.
type patternWalk struct {
	trees    sparseWalk // reads them
	patterns *sparse.Patterns

	directories []directory
	numbers     map[directoryKey]int
	states      map[string]int // directories by what the patterns decide about everything below them
	files       int            // in all directories
	names       int64          // bytes of names, paths and states
	seen        map[uint64]struct{}
	next        []visit
	began       time.Time
}

// maxPath is the maximum length of a path. Git makes packs with longer ones: each directory has its path, and the time
// for a pattern depends on the length.
const maxPath = 4096

// directory is a directory of the walked history, or several for which the patterns decide the same.
type directory struct {
	path     string          // of one of them; "": the root
	decision sparse.Decision // for what no pattern matches
	files    map[string]bool // whether blobs are included, by name
}

type directoryKey struct {
	parent int
	name   string
}

// visit is a tree at a path.
type visit struct {
	tree
	directory int
}

// Directories that always exist.
const (
	rootDirectory   = 0 // of commits
	wantedDirectory = 1 // of wanted trees: as the root, but its decision is Exclude
)

// openPatterns begins a walk if the filter needs one.
func (s *selection) openPatterns() error {
	if s.filter.sparse == "" {
		return nil
	}
	id, err := git.ParseObjectID(s.filter.sparse)
	if err != nil {
		return &fallback{reasonFilter, err}
	}
	typ, data, err := s.read(id, git.Blob)
	if err != nil {
		return err
	}
	if typ != git.Blob {
		return &fallback{reason: reasonFilter}
	}
	patterns, err := sparse.Parse(data)
	if err != nil {
		return &fallback{reasonFilter, err}
	}
	w := &patternWalk{trees: *newSparseWalk(s), patterns: patterns, numbers: map[directoryKey]int{},
		states: map[string]int{}, seen: map[uint64]struct{}{}, began: time.Now()}
	root := patterns.Match(nil, true)
	if root == sparse.Undecided {
		root = sparse.Exclude
	}
	w.directories = []directory{{decision: root, files: map[string]bool{}},
		{decision: sparse.Exclude, files: map[string]bool{}}}
	s.patterns = w
	return nil
}

// add adds a tree at a path to the pack and to the trees to be read, unless haves reach it.
func (w *patternWalk) add(raw []byte, directory int) error {
	s := w.trees.s
	if s.contains(s.known, raw) {
		return nil
	}
	s.addTo(s.chosen, raw)
	list := []tree{}
	if err := w.trees.append(&list, raw); err != nil {
		return err
	}
	v := visit{list[0], directory}
	if directory >= 1<<20 || v.source >= 1<<12-1 {
		return &fallback{reason: reasonMemory}
	}
	key := uint64(v.source+1)<<52 | uint64(directory)<<32 | uint64(uint32(v.pos))
	if _, ok := w.seen[key]; !ok {
		w.seen[key] = struct{}{}
		w.next = append(w.next, v)
	}
	return nil
}

// walk walks all trees that were added.
func (w *patternWalk) walk() error {
	for len(w.next) > 0 {
		level := w.next
		w.next = nil
		slices.SortFunc(level, func(a, b visit) int {
			return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.offset, b.offset), cmp.Compare(a.pos, b.pos))
		})
		for _, v := range level {
			if err := w.read(v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *patternWalk) read(v visit) error {
	s := w.trees.s
	size := s.view.format.Size()
	return w.trees.read(v.tree, func(typ git.ObjectType, entry, raw []byte) error {
		name := entryName(entry, size)
		if typ == git.Tree {
			below, err := w.subdirectory(v.directory, name)
			if err != nil {
				return err
			}
			return w.add(raw, below)
		}
		if !s.filter.blobs || s.contains(s.chosen, raw) {
			return nil
		}
		included, err := w.includes(v.directory, name)
		if err != nil || !included {
			return err
		}
		return s.trees.addBlob(raw)
	})
}

// subdirectory returns the number of a directory in another one.
func (w *patternWalk) subdirectory(parent int, name []byte) (int, error) {
	if n, ok := w.numbers[directoryKey{parent, string(name)}]; ok {
		return n, nil
	}
	path, decision, err := w.match(parent, name, true)
	if err != nil {
		return 0, err
	}
	state := decision.String() + w.patterns.State([]byte(path))
	n, ok := w.states[state]
	if !ok {
		n = len(w.directories)
		w.directories = append(w.directories, directory{path, decision, map[string]bool{}})
		w.states[state] = n
		w.names += int64(len(path) + len(state))
	}
	w.numbers[directoryKey{parent, string(name)}] = n
	w.names += int64(len(name))
	return n, nil
}

// match returns the path of an entry in a directory, and the decision for it.
func (w *patternWalk) match(parent int, name []byte, isDir bool) (path string, d sparse.Decision, err error) {
	in := &w.directories[parent]
	length := len(in.path) + 1 + len(name)
	if length > maxPath {
		return "", 0, &fallback{reason: reasonFilter}
	}
	if err := w.trees.s.spend(int64(length * w.patterns.Len())); err != nil {
		return "", 0, err
	}
	path = in.join(name)
	if d = w.patterns.Match([]byte(path), isDir); d == sparse.Undecided {
		d = in.decision
	}
	return path, d, nil
}

// includes reports whether the patterns include a file.
func (w *patternWalk) includes(parent int, name []byte) (bool, error) {
	if included, ok := w.directories[parent].files[string(name)]; ok {
		return included, nil
	}
	_, decision, err := w.match(parent, name, false)
	if err != nil {
		return false, err
	}
	w.directories[parent].files[string(name)] = decision == sparse.Include
	w.files++
	w.names += int64(len(name))
	return decision == sparse.Include, nil
}

func (d *directory) join(name []byte) string {
	if d.path == "" {
		return string(name)
	}
	return d.path + "/" + string(name)
}

// memory estimates the memory of the walk, which may be nil, in bytes.
func (w *patternWalk) memory() int64 {
	if w == nil {
		return 0
	}
	return 40*int64(len(w.seen)+cap(w.next)) + 400*int64(len(w.directories)) + 80*int64(len(w.numbers)+w.files) +
		w.names + looseMemory*int64(len(w.trees.loose))
}
