"""Who may write what several processes want: in local files, or on object storage."""
