package merge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/edit"
)

const (
	attributesFile = ".gitattributes"
	maxAttributes  = 4 << 20 // bytes of all files of one merge
	maxName        = 255     // bytes of the name of a directory on the disk
)

// attributes are the lines of files .gitattributes that have an effect on merges, by the directory with a final slash
// (gitattributes(5)). They choose Git's built-in merge drivers, such as union. Drivers of a configuration do not exist
// here, and Git then merges as usual.
type attributes map[string]string

// attributes returns the files of our side in the directories that differ between the trees of a merge. Only those have
// an effect.
func (v *view) attributes(ctx context.Context, three [3]git.ObjectID) (attributes, error) {
	found := make(map[string]git.ObjectID)
	if err := v.findAttributes(ctx, "", three, found); err != nil {
		return nil, err
	}
	files := attributes{}
	total, hasMacros := 0, false
	for dir, id := range found {
		typ, data, err := v.repo.Objects.Read(id, maxAttributes)
		if err != nil && !fault.Is(err, fault.Invalid) {
			return nil, err
		}
		if total += len(data); err != nil || total > maxAttributes {
			return nil, fault.New(fault.Invalid, "the files %s have more than %d bytes", attributesFile, maxAttributes)
		}
		if typ == git.Blob {
			files[dir] = string(data)
			hasMacros = hasMacros || bytes.Contains(data, []byte("[attr]"))
		}
	}
	if !hasMacros { // merges of most repositories then have the same attributes: none
		for dir, text := range files {
			files[dir] = mergeLines(text)
		}
		maps.DeleteFunc(files, func(_, text string) bool { return text == "" })
	}
	return files, nil
}

// findAttributes finds files in a directory with a final slash, and below it.
func (v *view) findAttributes(ctx context.Context, dir string, three [3]git.ObjectID,
	found map[string]git.ObjectID) error {
	var lists [3]tree
	for side, id := range three {
		var err error
		if lists[side], err = v.tree(id); err != nil {
			return err
		}
	}
	for _, e := range lists[ours].entries {
		path := dir + string(e.Name)
		switch {
		case string(e.Name) == attributesFile && e.Mode&^0o111 == pack.ModeFile:
			found[dir] = e.ID
		case e.Mode == pack.ModeTree && edit.CheckPath(path, 0) == nil && len(e.Name) <= maxName:
			var below [3]git.ObjectID
			for side, list := range lists {
				if other := edit.FindEntry(list.entries, string(e.Name)); other.Mode == pack.ModeTree {
					below[side] = other.ID
				}
			}
			if below[base] == below[ours] && below[base] == below[theirs] {
				continue
			}
			if err := v.findAttributes(ctx, path+"/", below, found); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// mergeLines returns the lines with the attribute merge, or with the macro binary, which sets it.
func mergeLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && (strings.Contains(line, "merge") || strings.Contains(line, "binary")) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// key identifies the files.
func (a attributes) key() string {
	if len(a) == 0 {
		return ""
	}
	hash := sha256.New()
	for _, dir := range slices.Sorted(maps.Keys(a)) {
		fmt.Fprintf(hash, "%q%q", dir, a[dir])
	}
	return string(hash.Sum(nil))
}
