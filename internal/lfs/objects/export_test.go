package objects

import "time"

// ExpireParts removes old parts as of a time.
func (s *Store) ExpireParts(now time.Time) { s.expireParts(now) }

// WithoutLinks makes the Store behave as on a file system without hard links.
func (s *Store) WithoutLinks(err error) { s.linkError = err }
