package places

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// collectNetwork removes the objects of a network of forks that no member reaches and that are older than a time. Those
// that a younger one needs stay. Packs that have some are made again without them, as in Purge. It returns the object
// directories, and adds to the result. A dry run ends with the views, and does not count that of the repository itself,
// of which Collect makes another one.
func (p *dirPlace) collectNetwork(ctx context.Context, run RunGit, o CollectOptions, done *Collected) ([]string,
	error) {
	f, err := p.family(ctx)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if err := f.checkPurgeable(); err != nil {
		return nil, err
	}
	if done.Before, err = countAll(ctx, f.objects, p.repo.Format); err != nil {
		return nil, err
	}
	tips, err := f.tips(ctx)
	for _, m := range f.members {
		done.Members = append(done.Members, m.Path())
		if err == nil {
			tips, err = m.addReflogs(tips)
		}
		ids := o.Keep
		if err == nil && m != p && o.KeepOf != nil {
			ids, err = o.KeepOf(ctx, m.repo)
		}
		for _, id := range ids {
			tips = append(tips, NamedTip{ID: id})
		}
	}
	if err != nil {
		return nil, err
	}
	s, err := f.survey(run, tips)
	if err != nil {
		return nil, err
	}
	expired, err := s.Unreachable(ctx)
	if err != nil {
		return nil, err
	}
	kept, err := f.younger(time.Now().Add(-o.OlderThan), expired)
	if err == nil {
		err = s.Keep(expired, kept)
	}
	switch {
	case err != nil:
	case o.DryRun:
		err = f.rewrite(ctx, run, expired)
	case len(expired) > 0:
		if err = f.writeGraphs(ctx, run); err == nil {
			err = f.remove(ctx, run, tips, expired, &Purged{})
		}
	}
	var views []string
	for i, c := range f.views {
		if o.DryRun && i == 0 {
			continue
		}
		freed, freedErr := c.freed()
		views, done.Freed, err = append(views, c.view), done.Freed+freed, cmp.Or(err, freedErr)
	}
	if err == nil && o.DryRun {
		done.After, err = countAll(ctx, views, p.repo.Format)
	}
	return f.objects, err
}

// Keep removes objects from a set, and those of the set that they need.
func (s *Survey) Keep(set map[git.ObjectID]bool, kept []git.ObjectID) error {
	for ; len(kept) > 0; kept = kept[1:] {
		if !set[kept[0]] {
			continue
		}
		delete(set, kept[0])
		if err := s.eachNeed(kept[0], func(need git.ObjectID) { kept = append(kept, need) }); err != nil {
			return err
		}
	}
	return nil
}

// addReflogs adds the objects in reflogs that exist (gitrepository-layout(5), "logs").
func (p *dirPlace) addReflogs(tips []NamedTip) ([]NamedTip, error) {
	err := filepath.WalkDir(filepath.Join(p.repo.Common, "logs"), func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			for _, field := range strings.SplitN(line, " ", 3)[:2] {
				id, err := git.ParseObjectID(field)
				if err != nil {
					return fault.Wrap(fault.Corrupt, "a reflog is damaged", err)
				}
				if found, err := p.repo.Objects.Has(id); err != nil {
					return err
				} else if found {
					tips = append(tips, NamedTip{"reflog", id})
				}
			}
		}
		return err
	})
	return tips, err
}

// younger returns those of some objects that are younger than a time, perhaps more than once. The age is that of a
// loose object or of its pack. A cruft pack (gitformat-pack(5)) has that of each object.
func (f *family) younger(than time.Time, of map[git.ObjectID]bool) (young []git.ObjectID, err error) {
	add := func(id git.ObjectID) {
		if of[id] {
			young = append(young, id)
		}
	}
	for _, dir := range f.objects {
		loose, err := filepath.Glob(filepath.Join(dir, "??/*"))
		for _, path := range loose {
			info, statErr := os.Stat(path)
			id, idErr := git.ParseObjectID(filepath.Base(filepath.Dir(path)) + filepath.Base(path))
			if statErr == nil && idErr == nil && info.ModTime().After(than) { // otherwise it was packed, or is another file
				add(id)
			}
		}
		indexes, globErr := filepath.Glob(filepath.Join(dir, "pack/*.idx"))
		err = errors.Join(err, globErr)
		for _, path := range indexes {
			if err == nil {
				err = eachYounger(add, strings.TrimSuffix(path, ".idx"), f.repo.Format, than)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return young, nil
}

// eachYounger calls add with the objects of a pack that are younger than a time.
func eachYounger(add func(git.ObjectID), base string, format git.ObjectFormat, than time.Time) error {
	info, err := os.Stat(base + ".pack")
	if err != nil {
		return WriteError(err)
	}
	times, err := os.ReadFile(base + ".mtimes")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return WriteError(err)
	}
	index, err := pack.OpenIndex(base+".idx", format)
	if err != nil {
		return err
	}
	defer index.Close()
	return index.Do(func(t *pack.Table) error {
		const header = 12
		if times != nil && len(times) < header+4*t.Len() {
			return fault.New(fault.Corrupt, "%s.mtimes is damaged", filepath.Base(base))
		}
		for i := range t.Len() {
			at := info.ModTime()
			if times != nil {
				at = time.Unix(int64(binary.BigEndian.Uint32(times[header+4*i:])), 0)
			}
			if at.After(than) {
				add(git.RawObjectID(t.ID(i)))
			}
		}
		return nil
	})
}
