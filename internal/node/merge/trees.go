package merge

import (
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Sides of a three-way merge.
const (
	base = iota
	ours
	theirs
)

// maxDirectories is the maximum number of directories that are merged in process.
const maxDirectories = 10_000

// treeMerge merges trees where the result is certain without reading files: both sides change different paths, or an
// existing file in the same way. No file is where another side has a directory. No rename matters then: it matters only
// if the other side changes the old path or adds the new one, or adds a path to a directory that is gone.
//
// It reads only directories that both sides change. Trees that git would write in another way are not certain.
type treeMerge struct {
	ctx  context.Context
	view *view

	made        []*write.Object // new trees, if they are needed
	directories int
	uncertain   bool
}

// merge returns the merged tree. isCertain is false if git has to merge.
func (m *treeMerge) merge(trees [3]git.ObjectID) (tree git.ObjectID, isCertain bool, err error) {
	tree, err = m.directory(trees)
	if err != nil || m.uncertain {
		return git.ObjectID{}, false, err
	}
	return tree, true, m.view.add(m.made...)
}

// directory merges a directory. The base may be the zero ID.
func (m *treeMerge) directory(trees [3]git.ObjectID) (git.ObjectID, error) {
	if m.directories++; m.directories > maxDirectories || m.uncertain {
		m.uncertain = true
		return git.ObjectID{}, m.ctx.Err()
	}
	var all, rest [3][]edit.Entry
	for side, id := range trees {
		t, err := m.view.tree(id)
		if err != nil {
			return git.ObjectID{}, err
		}
		m.uncertain = m.uncertain || !t.isCanonical
		all[side], rest[side] = t.entries, t.entries
	}
	var merged []edit.Entry
	for !m.uncertain {
		least, at := next(&rest)
		if !least.Exists() {
			break
		}
		for side := range at {
			m.uncertain = m.uncertain || !at[side].Exists() && edit.FindEntry(all[side], string(least.Name)).Exists()
		}
		e, err := m.entry(at)
		if err != nil {
			return git.ObjectID{}, err
		}
		if e.Exists() {
			e.Name = least.Name
			merged = append(merged, e)
		}
	}
	data := edit.FormatTree(merged)
	m.uncertain = m.uncertain || len(data) == 0
	id := write.ObjectID(m.view.repo.Format, git.Tree, data)
	if m.view.objects != nil && !slices.Contains(trees[:], id) {
		m.made = append(m.made, write.NewObject(m.view.repo.Format, git.Tree, data))
	}
	return id, m.ctx.Err()
}

// next removes the first entry, in the order of trees, and those of the other sides with the same name.
func next(rest *[3][]edit.Entry) (least edit.Entry, at [3]edit.Entry) {
	for _, list := range rest {
		if len(list) > 0 && (!least.Exists() || edit.CompareEntries(list[0], least) < 0) {
			least = list[0]
		}
	}
	for side, list := range rest {
		if len(list) > 0 && edit.CompareEntries(list[0], least) == 0 {
			at[side], rest[side] = list[0], list[1:]
		}
	}
	return least, at
}

// entry merges the entries of a name.
func (m *treeMerge) entry(at [3]edit.Entry) (edit.Entry, error) {
	switch exists := at[ours].Exists() && at[theirs].Exists(); {
	case at[base].Same(at[theirs]):
		return at[ours], nil
	case at[base].Same(at[ours]):
		return at[theirs], nil
	case exists && at[ours].Mode == pack.ModeTree:
		tree, err := m.directory([3]git.ObjectID{at[base].ID, at[ours].ID, at[theirs].ID})
		return edit.Entry{Mode: pack.ModeTree, ID: tree}, err
	case exists && at[base].Exists() && at[ours].Same(at[theirs]):
		return at[ours], nil
	}
	m.uncertain = true
	return edit.Entry{}, nil
}
