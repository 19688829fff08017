package merge

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	attributesFile = ".gitattributes"
	maxAttributes  = 4 << 20 // bytes of all files of one merge
)

// attributeWords are the words without which a file has no effect on a merge (gitattributes(5)).
var attributeWords = []string{"merge", "binary", "conflict-marker-size"}

// attributes are files .gitattributes, by the directory with a final slash. They choose Git's built-in merge drivers,
// such as union. Drivers of a configuration do not exist here, and Git then merges as usual.
type attributes map[string]string

// attributes returns the files that have an effect on a merge: those of our side, in the directories that differ.
func (v *view) attributes(found map[string]git.ObjectID) (attributes, error) {
	files := attributes{}
	total, matter := 0, false
	for dir, id := range found {
		typ, data, err := v.repo.Objects.Read(id, maxAttributes)
		if err != nil && !fault.Is(err, fault.Invalid) {
			return nil, err
		}
		if total += len(data); err != nil || total > maxAttributes {
			return nil, fault.New(fault.Invalid, "the files %s have more than %d bytes", attributesFile, maxAttributes)
		}
		if typ != git.Blob || !isOrdinaryDir(dir) {
			continue
		}
		files[dir] = string(data)
		matter = matter || slices.ContainsFunc(attributeWords, func(w string) bool { return strings.Contains(files[dir], w) })
	}
	if !matter {
		return nil, nil
	}
	return files, nil
}

// isOrdinaryDir reports whether a directory of a tree can be one on the disk.
func isOrdinaryDir(dir string) bool {
	for name := range strings.SplitSeq(strings.TrimSuffix(dir, "/"), "/") {
		if name == "." || name == ".." || name == "" && dir != "" || strings.EqualFold(name, ".git") || len(name) > 255 {
			return false
		}
	}
	return len(dir) < 2048
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

// write writes the files below a directory.
func (a attributes) write(root string) error {
	for dir, text := range a {
		path := filepath.Join(root, filepath.FromSlash(dir))
		err := os.MkdirAll(path, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(path, attributesFile), []byte(text), 0o600)
		}
		if err != nil {
			return fault.Wrap(fault.Unavailable, "cannot write to the state directory", err)
		}
	}
	return nil
}
