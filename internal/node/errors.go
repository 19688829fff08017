package node

// ClientConnError is an error of the connection to the client. Nothing more can be sent to it.
type ClientConnError struct{ Err error }

func (e *ClientConnError) Error() string { return "send the response: " + e.Err.Error() }
func (e *ClientConnError) Unwrap() error { return e.Err }

// ReportedError is an error that the response itself reports to the client. The response ends as usual.
type ReportedError struct{ Err error }

func (e *ReportedError) Error() string { return e.Err.Error() }
func (e *ReportedError) Unwrap() error { return e.Err }

// UnsentError is the error of a request that did not reach the node, so that it has not changed anything.
type UnsentError struct{ Err error }

func (e *UnsentError) Error() string { return e.Err.Error() }
func (e *UnsentError) Unwrap() error { return e.Err }

// StaleConnError is an error of a connection that was reused and turned out to be dead. The client has received
// nothing, and the same node may be asked once more.
type StaleConnError struct{ Err error }

func (e *StaleConnError) Error() string { return e.Err.Error() }
func (e *StaleConnError) Unwrap() error { return e.Err }
