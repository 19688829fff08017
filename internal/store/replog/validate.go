package replog

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// validate checks the rules that every record keeps. Nothing in a record can leave the repository's directory: not a
// key, not a ref, not a name.
func (r *Record) validate() error {
	if err := validatePosition(r.Number, r.Txn, r.Parent); err != nil {
		return err
	}
	if r.Kind == "" {
		return errors.New("no kind")
	}
	if _, err := git.ParseRefName(string(r.Head)); err != nil {
		return fmt.Errorf("HEAD: %w", err)
	}
	if r.ObjectFormat != git.SHA1 && r.ObjectFormat != git.SHA256 {
		return errors.New("no object format")
	}
	if r.Quota < 0 || int64(r.GC) < 0 || int64(r.ObjectsEpoch) < 0 || int64(r.Renames) < 0 {
		return errors.New("negative number")
	}
	for _, s := range r.Config {
		if err := s.validate(); err != nil {
			return err
		}
	}
	for i := range r.Names {
		if i > 0 && r.Names[i-1].String() >= r.Names[i].String() {
			return errors.New("names are not sorted")
		}
	}
	if r.Deleted && len(r.Names)+len(r.Packs) > 0 {
		return errors.New("a deleted repository has names or packs")
	}
	if len(r.Forks) > MaxForks {
		return fmt.Errorf("%d forks, and at most %d are possible", len(r.Forks), MaxForks)
	}
	for i, id := range r.Forks {
		if !isID(id) || i > 0 && r.Forks[i-1] >= id {
			return fmt.Errorf("invalid or unsorted fork %.80q", id)
		}
	}
	if err := r.validateRefs(); err != nil {
		return err
	}
	return r.validateKeys()
}

// validatePosition checks what all logs have in common.
func validatePosition(number uint64, txn, parent string) error {
	switch {
	case number == 0 || number >= maxNumber:
		return fmt.Errorf("invalid number %d", number)
	case !isID(txn):
		return fmt.Errorf("invalid txn %.80q", txn)
	case number == 1 && parent != "", number > 1 && !isID(parent), txn == parent:
		return fmt.Errorf("invalid parent %.80q", parent)
	}
	return nil
}

// isID reports whether s has the form of NewID.
func isID(s string) bool {
	return len(s) == 26 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

func (r *Record) validateRefs() error {
	refs := &r.Refs
	if refs.Checkpoint == "" && (refs.Bytes != 0 || refs.Count != 0 || refs.SHA256 != Sum{}) ||
		refs.Checkpoint != "" && !isKey(refs.Checkpoint, checkpointPrefix) || !isSize(refs.Bytes) || refs.Count < 0 {
		return fmt.Errorf("invalid checkpoint %.80q of %d bytes", refs.Checkpoint, refs.Bytes)
	}
	before := uint64(0)
	for _, entry := range refs.Tail {
		if entry.Number <= before || entry.Number > r.Number || len(entry.Changes) == 0 {
			return fmt.Errorf("invalid entry %d in the tail", entry.Number)
		}
		before = entry.Number
		last := git.RefName("")
		for _, c := range entry.Changes {
			if name, err := git.ParseRefName(string(c.Name)); err != nil || name == git.HEAD || name <= last {
				return fmt.Errorf("invalid or unsorted ref %q in entry %d of the tail", fault.Short(c.Name), entry.Number)
			}
			last = c.Name
			for _, id := range []git.ObjectID{c.Old, c.New, c.Peeled} {
				if !id.IsZero() && id.Format() != r.ObjectFormat {
					return fmt.Errorf("ref %q has an object ID of another format", fault.Short(c.Name))
				}
			}
			if c.New.IsZero() && !c.Peeled.IsZero() {
				return fmt.Errorf("ref %q is deleted and peeled", fault.Short(c.Name))
			}
		}
	}
	return nil
}

// validateKeys checks the packs and the condemned keys. A condemned key is never in use.
func (r *Record) validateKeys() error {
	used := make(map[string]bool, len(r.Packs)+1)
	used[r.Refs.Checkpoint] = true
	for i := range r.Packs {
		p := &r.Packs[i]
		if !isKey(p.Key, packPrefix) || used[p.Key] || p.From != "" && !isID(p.From) {
			return fmt.Errorf("invalid or repeated key %.80q of a pack", p.Key)
		}
		used[p.Key] = true
		if !isSize(p.Bytes) || !isSize(p.IdxBytes) || p.Objects < 0 || p.Objects > math.MaxUint32 ||
			p.Since > r.Number || int64(p.Since) < 0 {
			return fmt.Errorf("pack %.80q: invalid size or number", p.Key)
		}
		for _, f := range p.Extra {
			if !isExtension(f.Ext) || !isSize(f.Bytes) {
				return fmt.Errorf("pack %.80q: invalid file %.80q", p.Key, f.Ext)
			}
		}
	}
	before := ""
	for _, key := range r.Condemned {
		if !isKey(key, packPrefix) && !isKey(key, checkpointPrefix) || used[key] || key <= before {
			return fmt.Errorf("invalid or unsorted condemned key %.80q", key)
		}
		before = key
	}
	return nil
}

// isSize reports whether an object of the store can have n bytes: 5 TiB is the maximum of S3. The sum of all sizes of a
// record fits in an int64, because MaxRecord limits their number.
func isSize(n int64) bool { return n >= 0 && n <= 5<<40 }

// isKey reports whether key is prefix and one name of letters, digits and dashes.
func isKey(key, prefix string) bool {
	name, ok := strings.CutPrefix(key, prefix)
	if !ok || name == "" || name[0] == '-' || len(name) > 200 {
		return false
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// isExtension reports whether ext is the ending of an extra file.
func isExtension(ext string) bool { return slices.Contains(extensions[2:], ext) }
