package auth

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// originFile is the content of the file in which permissions survive a restart. It has hashes of the questions that
// origins have permitted, with the time of the answer, and the key of the hashes. It has no credentials.
type originFile struct {
	Key     string           `json:"key"`
	Allowed map[string]int64 `json:"allowed"` // Unix time in seconds, by hash
}

// savePeriod is how often new permissions are written. A withdrawn one is written before its caller is refused.
const savePeriod = 30 * time.Second

// load reads the file. Its permissions count only while the origin gives no answer. If the file cannot be used, there
// are no permissions, and the key stays the one of this process.
func (s *Origins) load() {
	text, err := os.ReadFile(s.o.File)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var f originFile
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	key, badKey := hex.DecodeString(f.Key)
	if err == nil && (badKey != nil || len(key) != len(s.key)) {
		err = errors.New("invalid key")
	}
	if err != nil {
		s.o.Log.Warn("cannot read what origins permitted before the restart", "error", err)
		return
	}
	copy(s.key[:], key)
	now := s.o.Now()
	for text, unix := range f.Allowed {
		at := time.Unix(unix, 0)
		if sum, err := hex.DecodeString(text); err == nil && len(sum) == len(originKey{}) && !at.After(now) {
			s.allowed.Add(originKey(sum), originPermission{at: at})
		}
	}
}

// keepSaving writes new permissions from time to time, until the end.
func (s *Origins) keepSaving() {
	defer close(s.saved)
	ticker := time.NewTicker(savePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.save()
		case <-s.life.Done():
			s.save()
			return
		}
	}
}

// save writes the file if a permission has changed.
func (s *Origins) save() {
	if s.o.File == "" {
		return
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	isChanged := s.changed
	s.changed = false
	f := originFile{Key: hex.EncodeToString(s.key[:]), Allowed: make(map[string]int64, s.allowed.Len())}
	if isChanged {
		for _, key := range s.allowed.Keys() {
			p, _ := s.allowed.Peek(key)
			f.Allowed[hex.EncodeToString(key[:])] = p.at.Unix()
		}
	}
	s.mu.Unlock()
	if !isChanged {
		return
	}
	text, err := json.Marshal(f)
	if err == nil {
		err = disk.ReplaceFile(s.o.File, text)
	}
	if err == nil {
		return
	}
	s.mu.Lock()
	s.changed = true // try again
	s.mu.Unlock()
	// an old file could give back a permission that was withdrawn
	if removed := os.Remove(s.o.File); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
		err = fmt.Errorf("%w; %w", err, removed)
	}
	s.o.Log.Error("cannot write what origins permitted", "error", err)
}
