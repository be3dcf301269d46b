"""One evaluation spread over many processes: what is divided, how, and how it is put together again."""
