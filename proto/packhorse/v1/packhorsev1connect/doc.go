// Package packhorsev1connect is the control API of a storage node: clients and handlers of its services. Package client makes such clients.
package packhorsev1connect
