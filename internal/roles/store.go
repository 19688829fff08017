package roles

import "errors"

// addStore opens the store of the node, if the configuration has one.
func (s *server) addStore() error {
	if !s.cfg.Store.Enabled() {
		return nil
	}
	return errors.New("store.url: this version cannot use a store yet: remove the table [store]")
}
