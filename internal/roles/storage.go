package roles

// buildStorage builds a storage node for gateways in other processes.
func (s *server) buildStorage() error {
	// Rules and a hook are known if node and gateways have the same configuration file.
	s.lanes.reserveForKnown(s.cfg.Lanes.Anonymous, sticky(s.cfg.Auth.KnowsCallers))
	if err := s.addNode(); err != nil {
		return err
	}
	s.addLocal()
	return nil
}
