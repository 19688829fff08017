package mirror

// sweep removes what an earlier process left in mirrors, and continues first updates.
func (m *Mirrors) sweep() {}
