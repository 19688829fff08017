package places

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Keys of the description of a repository, of its category, and of those that pages do not list.
const (
	DescriptionKey = "gitweb.description"
	CategoryKey    = "gitweb.category"
	UnlistedKey    = "packhorse.unlisted"
)

// settingKeys are the keys of Git's configuration that Configure changes.
var settingKeys = []string{CategoryKey, DescriptionKey, "gitweb.owner", "lfs.quota", "packhorse.archived", LabelKey,
	repo.PurgedKey, repo.PurgedLFSKey, repo.PurgingKey, repo.QuotaKey, "packhorse.readonly", "receive.maxinputsize",
	UnlistedKey, "transfer.hiderefs"}

// Settings are values of Git's configuration by key, in their order. A key without values is not set.
type Settings map[string][]string

// Add adds a value if Configure changes its key.
func (s Settings) Add(key, value string) {
	if slices.Contains(settingKeys, key) {
		s[key] = append(s[key], value)
	}
}

// Change replaces the settings by the result of change. It returns the keys whose values it changed.
func (s Settings) Change(change func(Settings) error) (changed []string, err error) {
	before := maps.Clone(s)
	if err := change(s); err != nil {
		return nil, err
	}
	for _, key := range settingKeys {
		if !slices.Equal(before[key], s[key]) {
			changed = append(changed, key)
		}
	}
	return changed, nil
}

// Text returns the values of keys for the end of a configuration file (git-config(1), "Syntax").
func (s Settings) Text(keys []string) []byte {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\b", `\b`)
	var b []byte
	for _, key := range keys {
		section, name, _ := strings.Cut(key, ".")
		for _, value := range s[key] {
			b = fmt.Appendf(b, "[%s]\n\t%s = \"%s\"\n", section, name, quote.Replace(value))
		}
	}
	return b
}

// appendTo appends the settings to a configuration file.
func (s Settings) appendTo(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(s.Text(settingKeys))
	return cmp.Or(err, file.Close())
}

// ReadSettings returns the settings of a repository on a disk.
func ReadSettings(common string, config repo.Config) Settings {
	s := make(Settings)
	for key, value := range config.All() {
		s.Add(key, value)
	}
	for key, name := range settingFiles {
		text, err := readSettingFile(filepath.Join(common, name))
		if err == nil && !strings.HasPrefix(text, "Unnamed repository;") { // of Git's template
			s[key] = []string{strings.ToValidUTF8(strings.TrimRight(text, "\n"), "\ufffd")}
		}
	}
	if text, err := readSettingFile(filepath.Join(common, cgitFile)); err == nil {
		s.addCgit(text)
	}
	return s
}

// settingFiles are files for gitweb, which it prefers to these keys.
var settingFiles = map[string]string{DescriptionKey: "description", CategoryKey: "category"}

const (
	cgitFile       = "cgitrc" // settings of cgit
	maxSettingFile = 64 << 10 // maximum size in bytes of a file with settings; the rest is ignored
)

func readSettingFile(path string) (string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a named pipe is empty
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSettingFile))
	return string(text), err
}

// cgitKeys are the keys for settings of cgit (cgitrc(5), "REPOSITORY-SPECIFIC CGITRC FILE").
var cgitKeys = map[string]string{"desc": DescriptionKey, "owner": "gitweb.owner", "section": CategoryKey,
	"hide": UnlistedKey, "ignore": UnlistedKey}

// addCgit adds settings of cgit that are not set otherwise.
func (s Settings) addCgit(text string) {
	found := Settings{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		key := cgitKeys[strings.TrimSpace(name)]
		if value = strings.ToValidUTF8(value, "\ufffd"); ok && key != "" && value != "" && s[key] == nil &&
			(key != UnlistedKey || value != "0") {
			found[key] = []string{value}
		}
	}
	maps.Copy(s, found)
}

// Configure implements Place. It makes the new configuration in another file, from which Git removes the former values.
// Then Git's lock of the configuration is held only to compare and to rename: a killed process leaves no lock.
func (p *dirPlace) Configure(ctx context.Context, change func(Settings) error) (err error) {
	common := p.repo.Common
	path, err := filepath.EvalSymlinks(filepath.Join(common, "config"))
	if err != nil {
		return WriteError(err)
	}
	for {
		text, err := os.ReadFile(path)
		if err != nil {
			return WriteError(err)
		}
		config, err := repo.ParseConfig(string(text))
		if err != nil {
			return err
		}
		settings := ReadSettings(common, config)
		changed, err := settings.Change(change)
		if err != nil {
			return err
		}
		if len(changed) == 0 { // an earlier change may not have been synced
			return WriteError(cmp.Or(p.Sync(filepath.Dir(path)), p.Sync(common)))
		}
		isDone, err := p.writeConfig(ctx, path, text, settings.Text(changed),
			func(file string) error { return p.unset(ctx, file, config, changed) })
		if err != nil {
			return err
		}
		if !isDone {
			continue
		}
		for key, name := range settingFiles {
			if slices.Contains(changed, key) {
				if err := removeFile(filepath.Join(common, name)); err != nil {
					return WriteError(err)
				}
			}
		}
		if err := cmp.Or(p.Sync(filepath.Dir(path)), p.Sync(common)); err != nil {
			return fault.Wrap(fault.Unavailable, "the settings were changed, but the change can be lost in a power failure",
				err)
		}
		return nil
	}
}

// writeConfig replaces the configuration by the old text, from which edit removes values, and the new text, with the
// same mode. It reports whether the configuration had the old text until then.
func (p *dirPlace) writeConfig(ctx context.Context, path string, old, added []byte, edit func(file string) error) (
	isDone bool, err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "tmp_config_")
	if err != nil {
		return false, WriteError(err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if _, err := file.Write(old); err != nil {
		return false, WriteError(err)
	}
	if len(old) > 0 && old[len(old)-1] != '\n' {
		added = append([]byte("\n"), added...)
	}
	if err := edit(file.Name()); err != nil {
		return false, err
	}
	edited, err := os.OpenFile(file.Name(), os.O_WRONLY|os.O_APPEND, 0) // Git has replaced it
	if err != nil {
		return false, WriteError(err)
	}
	defer edited.Close()
	_, err = edited.Write(added)
	if info, statErr := os.Stat(path); statErr == nil {
		err = errors.Join(err, edited.Chmod(info.Mode().Perm()))
	}
	if err := errors.Join(err, edited.Sync()); err != nil {
		return false, WriteError(err)
	}
	lock := path + ".lock"
	if err := lockBy(ctx, path, func() error { return os.Link(file.Name(), lock) }); err != nil {
		return false, err
	}
	now, err := os.ReadFile(path)
	if err == nil && bytes.Equal(now, old) {
		return true, WriteError(os.Rename(lock, path))
	}
	return false, WriteError(errors.Join(err, os.Remove(lock)))
}

// unset has Git remove all values of keys from a file.
func (p *dirPlace) unset(ctx context.Context, file string, config repo.Config, keys []string) error {
	for _, key := range keys {
		if _, isSet := config.Get(key); !isSet {
			continue
		}
		err := p.Runner.Run(ctx, process.Command{Class: ClassManage, Subcommand: "config", Repository: p.repo.Common,
			Args: []string{"config", "--file", file, "--unset-all", key}})
		if err != nil {
			return GitError(p.repo.Common, err)
		}
	}
	return nil
}
