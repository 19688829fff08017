package hydrate

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// nameFile is in a local copy: by which name the repository was found last.
const nameFile = "name"

// SetName notes by which name the repository was found, in the words of the caller. The local copy has to exist. An
// error only means that a later process does not know the name.
func (r *Repository) SetName(text string) { _ = r.write(nameFile, text+"\n") }

// Names returns what SetName noted last, by repository ID, also in earlier processes.
func (c *Cache) Names() map[string]string {
	c.mu.Lock()
	dirs := make(map[string]string, len(c.repositories))
	for id, r := range c.repositories {
		dirs[id] = r.dir
	}
	c.mu.Unlock()
	names := make(map[string]string, len(dirs))
	for id, dir := range dirs {
		if text, err := os.ReadFile(filepath.Join(dir, nameFile)); err == nil {
			names[id] = strings.TrimSuffix(string(text), "\n")
		}
	}
	return names
}

// SetChecked notes that the applied record, or an earlier one, was the head at a time. An error only makes the local
// copy look older than it is.
func (r *Repository) SetChecked(at time.Time) {
	_ = os.Chtimes(filepath.Join(r.dir, recordFile), at, at)
}

// Checked returns the time of the last SetChecked, also in an earlier process. Without one it is in 1970.
func (r *Repository) Checked() (time.Time, error) {
	info, err := os.Stat(filepath.Join(r.dir, recordFile))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}
