package merge

import (
	"bytes"
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

// attributes are the lines of files .gitattributes that have an effect on merges, by the directory with a final slash
// (gitattributes(5)). They choose Git's built-in merge drivers, such as union. Drivers of a configuration do not exist
// here, and Git then merges as usual.
type attributes map[string]string

// attributes reads files. Those of our side in the directories that differ have an effect.
func (v *view) attributes(found map[string]git.ObjectID) (attributes, error) {
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
		if typ == git.Blob && isOrdinaryDir(dir) {
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
